"""The library as a user imports it: every name is there, and an import loads what it needs and no more."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import albert_lsh
from albert_lsh.predict import main

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("torch", "transformers", "datasets", "pandas", "matplotlib", "scipy", "sklearn", "reformer_pytorch")
HEAVY += ("transformers.modeling_utils", "nbformat")


def loaded_by(code):
    """Which of HEAVY a fresh interpreter has loaded after this code."""
    code += f"\nimport sys; print(*(name for name in {HEAVY!r} if name in sys.modules))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


ATTEND = "from albert_lsh import attention; import torch; x = torch.rand(1, 2, 8, 4); attention.attend('lsh', x, x, x)"


@pytest.mark.parametrize(
    ("code", "not_needed"),
    [
        ("import albert_lsh", HEAVY),
        (ATTEND, {"transformers", "datasets", "pandas", "matplotlib", "scipy", "sklearn"}),
        ("from albert_lsh import load_data", {"matplotlib", "sklearn", "scipy", "reformer_pytorch"}),
        ("import albert_study.runner", {"matplotlib", "sklearn", "scipy", "transformers.modeling_utils", "nbformat"}),
        ("import albert_study.report", {"sklearn", "transformers.modeling_utils", "nbformat"}),
    ],
)
def test_an_import_loads_only_what_it_needs(code, not_needed):
    assert not set(not_needed) & set(loaded_by(code))


@pytest.mark.parametrize("name", albert_lsh.__all__)
def test_every_name_is_there_and_documented(name):
    assert getattr(albert_lsh, name).__doc__


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


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'load_modle'"):
        _ = albert_lsh.load_modle


def test_load_model_brings_the_pipeline():
    """`transformers.pipeline` knows it by name, although nobody asked for the class."""
    code = "from albert_lsh import load_model; from transformers.pipelines import PIPELINE_REGISTRY as known; "
    code += "assert 'extractive-question-answering' in known.get_supported_tasks()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_wheel_says_that_it_is_typed():
    assert (Path(albert_lsh.__file__).parent / "py.typed").is_file()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "py.typed" in project["tool"]["setuptools"]["package-data"]["albert_lsh"]


def test_one_version_is_everywhere(capsys):
    with pytest.raises(SystemExit, match="^0$"):
        main(["--version"])
    assert capsys.readouterr().out == f"albert-lsh {albert_lsh.__version__}\n"
    assert f"\nversion: {albert_lsh.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {albert_lsh.__version__}\n" in (ROOT / "CHANGELOG.md").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "albert_lsh.__version__"}
