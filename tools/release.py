"""What must hold before a version is published, each point tried: `python tools/release.py` (make release).

Nothing is published here; the last lines say what is left to a hand. Status 1 when a point does not hold.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable
from pathlib import Path

import refresh
import yaml

import albert_lsh

ROOT = Path(__file__).resolve().parents[1]
SMALL = {"task": "mini-mrpc", "model": "mini", "epochs": "1", "train_examples": "32", "eval_examples": "16"}
BY_HAND = """left to a hand: tag the commit, push the tag, upload dist/ to PyPI (twine), archive it (Zenodo) and put the
DOI into CITATION.cff"""


class Unfit(Exception):
    """A point that does not hold."""


def require(holds: object, message: str) -> None:
    if not holds:
        raise Unfit(message)


def told(command: list[str | Path], folder: Path = ROOT) -> str:
    """What a command printed, without the checkout or its library in sight of Python.

    Raises:
        Unfit: the command failed; with the end of what it said.
    """
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    said = (done.stderr or done.stdout)[-600:].strip()
    require(done.returncode == 0, f"{Path(command[0]).name} {command[1]}: {said}")
    return done.stdout.strip()


def committed() -> str:
    """The tree is clean, and its address is the real one."""
    changed = told(["git", "status", "--porcelain"])
    require(not changed, f"not committed:\n{changed}")
    placeholder = refresh.PROJECT["tool"]["albert-lsh"]["address-is-placeholder"]
    require(not placeholder, f"pyproject.toml: {refresh.address()} is a placeholder")
    return told(["git", "rev-parse", "HEAD"])


def named() -> str:
    """The same version in the package, in CITATION.cff and on top of CHANGELOG.md, and no tag has it."""
    version = albert_lsh.__version__
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]
    top = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    found = {"albert_lsh.__version__": version, "CITATION.cff": str(cited), "CHANGELOG.md, on top": top.split(" ")[0]}
    require(len(set(found.values())) == 1, f"versions differ: {found}")
    require(not told(["git", "tag", "--list", version, f"v{version}"]), f"{version} is tagged already")
    return version


def shown() -> str:
    """Notebooks and pages are what `make refresh` makes of them."""
    old = [path.name for path, text in refresh.refreshed().items() if text != path.read_text(encoding="utf-8")]
    require(not old, f"`make refresh` changes {', '.join(old)}")
    return "nothing to refresh"


def built() -> str:
    """A source distribution and, from it alone, a wheel, in dist/."""
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    told([sys.executable, "-m", "build", "--quiet", ROOT])
    return ", ".join(sorted(f"{path.name} {path.stat().st_size / 1e6:.1f} MB" for path in (ROOT / "dist").iterdir()))


def installed(pattern: str, place: Path) -> str:
    """The one distribution of dist/ that fits, in an empty environment: its command, and a notebook far from here."""
    (distribution,) = (ROOT / "dist").glob(pattern)
    venv.create(place / "venv", with_pip=True)
    python = place / "venv" / "bin" / "python"
    locked = ["--constraint", ROOT / "requirements.lock"]
    told([python, "-m", "pip", "install", "--quiet", *locked, distribution])
    told([python, "-m", "pip", "check"])
    (folder := place / "elsewhere").mkdir()
    said = told([place / "venv" / "bin" / "albert-lsh", "--version"], folder)
    require(albert_lsh.__version__ in said, f"albert-lsh --version says {said}")
    shutil.copy(ROOT / "notebooks" / "glue.ipynb", folder)
    asked = [word for name, value in SMALL.items() for word in ("-p", name, value)]
    told([python, "-m", "papermill", "glue.ipynb", "out.ipynb", "--no-progress-bar", *asked], folder)
    (result,) = folder.rglob("result.json")
    return f"installed; glue.ipynb wrote {result.relative_to(folder)}"


def main() -> int:
    """Try each point, and say of each what was seen or what is wrong."""
    with tempfile.TemporaryDirectory() as place:
        points: dict[str, Callable[[], str]] = {
            "commit": committed,
            "version": named,
            "pages": shown,
            "distributions": built,
            "wheel": lambda: installed("*.whl", Path(place) / "wheel"),
            "source": lambda: installed("*.tar.gz", Path(place) / "source"),
            "tests": lambda: [line for line in told(["make", "test"]).splitlines() if " passed" in line][-1],
        }
        failed = 0
        for name, point in points.items():
            try:
                print(f"{name:14} ok      {point()}", flush=True)
            except (Unfit, ValueError) as error:
                failed += 1
                print(f"{name:14} FAILED  {error}", flush=True)
    print(f"{failed} of {len(points)} points do not hold" if failed else BY_HAND)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
