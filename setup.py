"""What pyproject.toml cannot say: what the package carries besides code, and its description on PyPI."""

import re
import tomllib
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
ADDRESS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]
CARRIED = ("studies/*.*", "notebooks/*.ipynb", "report/*.typ", "report/references.bib", "report/page.html")


class Build(build_py):
    """Copies the files of CARRIED into the package, where `albert_study.study.find_file` finds them."""

    def run(self) -> None:
        super().run()
        for path in [path for pattern in CARRIED for path in ROOT.glob(pattern) if not self.editable_mode]:
            target = Path(self.build_lib) / "albert_study" / path.relative_to(ROOT)
            self.mkpath(str(target.parent))
            self.copy_file(str(path), str(target))


def description() -> str:
    """README, its relative links and pictures with the repository's address."""

    def absolute(found: re.Match[str]) -> str:
        return f"{found[1]}({ADDRESS}/{'raw' if found[1].startswith('!') else 'blob'}/main/"

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.sub(r"(!?\[[^][]*\])\((?!https?://|#)", absolute, text)


setup(cmdclass={"build_py": Build}, long_description=description(), long_description_content_type="text/markdown")
