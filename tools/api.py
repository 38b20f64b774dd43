"""Pages on the library's public names, from its docstrings: `python tools/api.py docs/api` (make docs). No network."""

import sys
from pathlib import Path

import pdoc

import albert_lsh

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for name in albert_lsh.__all__:  # which are imported when they are first used; pdoc sees what is there
        setattr(albert_lsh, name, getattr(albert_lsh, name))
    pdoc.render.configure(docformat="google", show_source=False)
    pdoc.pdoc("albert_lsh", output_directory=Path(sys.argv[1]))
