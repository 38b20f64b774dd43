"""What an installed package can do in an empty folder, far from any checkout."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from albert_lsh.record import read_result

ROOT = Path(__file__).resolve().parents[1]
SMALL = """
parameters: {model: mini, max_length: 48, train_examples: 32, eval_examples: 16, epochs: 1, precision: fp32}
tasks: {mini-mrpc: {arms: {softmax: }}}
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a source distribution as PyPI gets it, and unpacked."""
    checkout, built = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("built")
    for name in ("lib", "notebooks", "studies", "report"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for path in [path for path in ROOT.iterdir() if path.is_file()]:
        shutil.copy(path, checkout)
    code = f"from setuptools import build_meta; build_meta.build_sdist({str(built)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=checkout, check=True, capture_output=True)
    (source,) = built.glob("*.tar.gz")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", built, source]
    subprocess.run(command, check=True, capture_output=True)
    (path,) = built.glob("*.whl")
    with zipfile.ZipFile(path) as file:
        file.extractall(built / "site")
    return built / "site"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An empty folder of somebody's own repository, in which Python finds the wheel."""
    folder = tmp_path_factory.mktemp("empty")
    command = "git init -q && git -c user.name=a -c user.email=a commit -q --allow-empty -m theirs"
    subprocess.run(command, shell=True, cwd=folder, check=True)
    return folder


def python(wheel, folder, *arguments):
    environment = os.environ | {"PYTHONPATH": str(wheel), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_study_its_results_and_the_report_are_made_in_an_empty_folder(wheel, folder):
    (folder / "studies").mkdir()
    (folder / "studies" / "small.yaml").write_text(SMALL)
    python(wheel, folder, "-m", "albert_study.execute", "small", "mini-mrpc/mini/softmax/seed-0")
    run = folder / "results/runs/small/mini-mrpc/mini/softmax/seed-0"
    assert read_result(run / "result.json")["environment"]["commit"] is None  # that folder's commit is not ours
    notebook = str(wheel / "albert_study/notebooks/results.ipynb")
    python(wheel, folder, "-m", "papermill", notebook, "out.ipynb", "-p", "study", "small", "--no-progress-bar")
    assert (folder / "results/tables/small-scores.csv").exists()
    assert (folder / "figures/small-loss-mini-mrpc.svg").exists()
    python(wheel, folder, "-m", "albert_study.report")
    assert (folder / "report/report.pdf").read_bytes().startswith(b"%PDF")
    assert {path.name for path in folder.glob("[!.]*")} == {"figures", "out.ipynb", "report", "results", "studies"}


def test_the_models_and_studies_of_the_package_are_there_in_an_empty_folder(wheel, folder):
    code = "import albert_lsh; print(albert_lsh.load_model('nano-key-clusters').config.albert_lsh['attention'])\n"
    said = python(wheel, folder, "-c", code + "from albert_study.study import main; main(['mini'])").splitlines()
    assert "key-clusters" in said
    assert any(line.startswith("to make  mini-mrpc/mini/softmax/seed-0") for line in said)


def test_the_description_on_pypi_shows_pictures_and_leads_somewhere(wheel):
    (metadata,) = wheel.glob("*.dist-info/METADATA")
    text = message_from_bytes(metadata.read_bytes()).get_payload()
    places = re.findall(r"\]\(([^)]+)\)", text)
    assert len(places) == len(re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text()))
    assert all(place.startswith("https://") for place in places)
    assert "/main/figures/" in text
    assert re.search(r"\(https://github.com/\S+/blob/main/docs/\S+\.md\)", text)


def test_the_wheel_carries_what_is_no_code_and_no_file_twice(wheel):
    package = wheel / "albert_lsh"
    assert all(
        (package / name).is_file() for name in ("py.typed", "card.md", "pretrained/nano-key-clusters/model.safetensors")
    )
    large = [path for path in wheel.rglob("*") if path.is_file() and path.stat().st_size > 100_000]
    assert len({path.read_bytes() for path in large}) == len(large) > 0
