"""The library as a user imports it: every name is there, documented, and of one version."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import albert_lsh
from albert_lsh.predict import main

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_name_is_there_and_documented():
    assert [name for name in albert_lsh.__all__ if not getattr(albert_lsh, name).__doc__] == []


def test_api_pages_show_every_public_name_with_its_docstring(tmp_path):
    """`make docs`; nothing of them is fetched from a network."""
    command = [sys.executable, str(ROOT / "tools" / "api.py"), str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    for page, names in {"albert_lsh": albert_lsh.__all__, "albert_lsh/attention": albert_lsh.attention.__all__}.items():
        text = (tmp_path / f"{page}.html").read_text(encoding="utf-8")
        assert not re.search(r"""src=["'](?:https?:)?//|<link [^>]*href=["'](?:https?:)?//""", text)
        sections = dict(re.findall(r'<section id="(\w+)">(.*?)</section>', text, re.DOTALL))
        for name in set(names) - {"attention", "ATTENTIONS"}:  # a page of its own, and a table
            assert 'class="docstring"' in sections[name], name


def test_one_version_is_everywhere(capsys):
    with pytest.raises(SystemExit, match="^0$"):
        main(["--version"])
    assert capsys.readouterr().out == f"albert-lsh {albert_lsh.__version__}\n"
    assert f"\nversion: {albert_lsh.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {albert_lsh.__version__}\n" in (ROOT / "CHANGELOG.md").read_text()
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "albert_lsh.__version__"}
