"""Every notebook as a person uses it: Run All, Run All again in the same kernel, then once more with a change.

In a copy of the repository, one notebook after the other in a kernel that forgets all names between them: importing
what they need takes longer than running them. The parameters cell is edited, as a person does it.
"""

import ast
import asyncio
import os
import re
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
import pytest
from jupyter_client import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from albert_lsh.data import load_data
from albert_lsh.record import read_result
from albert_study.study import NOTEBOOKS as KINDS

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"


class Row(NamedTuple):
    """How a notebook is executed."""

    given: dict[str, Any]  # parameters with which it takes seconds
    change: dict[str, Any]  # set before the third execution
    wrong: dict[str, Any]  # no parameter of the notebook; the error names it


SMALL = {"model": "mini", "train_examples": 64, "eval_examples": 32, "epochs": 1, "precision": "fp32"}
READING = {"model": "mini", "task": "mini-squad", "max_length": 32, "paragraphs": 3}
VARIANTS = {"key-clusters": {"attention": "key-clusters", "shares": [0.5, 0.25]}}
LONG = {"only": ["full", "LSH-1"], "steps": 4, "max_length": 32, "eval_examples": 8}
TIMES = {"lengths": [64, 128], "cases": ["softmax", "key-clusters"], "keys": 64, "memory": False}
ARMS = ["2020-block", "with-residual", "softmax"]
OTHER_TASK, NO_LIST = {"tasks": ["mini-sst2"]}, {"task": ["mini-mrpc"]}
ROWS = {
    "compare.ipynb": Row({**SMALL, "task": "mini-mrpc", "arms": ARMS}, {"seed": 1}, {"epoch": 2}),
    "glue.ipynb": Row({**SMALL, "task": "mini-mrpc"}, {"learning_rate": 5e-4}, {"learning_rte": 1e-3}),
    "pretrain.ipynb": Row(  # roberta has no order of sentences to show
        {"kind": "roberta", "steps": 4, "eval_steps": 2, "eval_sequences": 8, "batch_size": 8}, {"seed": 1}, {"sed": 1}
    ),
    "long_range.ipynb": Row(LONG, {"seed": 1}, {"onyl": []}),
    "squad.ipynb": Row(
        {**SMALL, "task": "mini-squad"}, {"attention": "key-clusters", "model": "nano"}, {"attn": "key-clusters"}
    ),
    "fidelity.ipynb": Row({"examples": 24, "looked_into": 4, "variants": VARIANTS}, {"seed": 1}, {"splt": "a"}),
    "reading.ipynb": Row(READING, {"seed": 1}, {"paragraph": 3}),
    "masked_words.ipynb": Row({**READING, "model": "nano", "paragraphs": 6}, {"seed": 1}, {"paragraph": 3}),
    "bag_of_words.ipynb": Row({"tasks": ["mini-mrpc"], "train_examples": 200}, OTHER_TASK, NO_LIST),
    "constant_answers.ipynb": Row({"tasks": ["mini-mrpc"]}, OTHER_TASK, NO_LIST),
    "collapse.ipynb": Row(
        {"model": "mini", "task": "mini-sst2", "texts": 8, "max_length": 40, "draws": 2}, {"seed": 1}, {"text": 8}
    ),
    "efficiency.ipynb": Row(TIMES, {"repeats": 1}, {"case": []}),
    "results.ipynb": Row({"study": "pretrained"}, {"study": "no-training"}, {"studdy": "fidelity"}),
}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the repository's code, which gets the results; everything runs offline there."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("lib", "notebooks", "studies"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for study in ("no-training", "pretrained"):
        shutil.copytree(ROOT / "results" / "runs" / study, folder / "results" / "runs" / study)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


@pytest.fixture(scope="module")
def kernel(checkout):
    """A kernel, started where JupyterLab starts one."""
    manager = AsyncKernelManager(kernel_name="python3")
    environment = os.environ | {"PYTHONPATH": str(checkout / "lib"), "HF_HUB_OFFLINE": "1"}
    asyncio.run(manager.start_kernel(cwd=str(checkout / "notebooks"), env=environment))
    yield manager
    asyncio.run(manager.shutdown_kernel(now=True))


class Opened:
    """A notebook, opened in a kernel."""

    def __init__(self, name: str, checkout: Path, kernel: AsyncKernelManager) -> None:
        self.notebook = nbformat.read(checkout / "notebooks" / name, as_version=4)
        self.cells = [cell for cell in self.notebook.cells if cell.cell_type == "code"]
        self.notebook.cells.append(nbformat.v4.new_code_cell("%reset -f"))
        self.client = NotebookClient(self.notebook, km=kernel, timeout=600)

    @property
    def parameters(self) -> Any:
        return next(cell for cell in self.cells if "parameters" in cell.metadata.get("tags", []))

    def edit(self, given: dict[str, Any]) -> None:
        """Give parameters other values in their cell; a name that is not there becomes a line more."""
        for name, value in given.items():
            lines = self.parameters.source.split("\n")
            statements: list[Any] = ast.parse(self.parameters.source).body
            there = [line for line in statements if line.targets[0].id == name]
            place = slice(there[0].lineno - 1, there[0].end_lineno) if there else slice(len(lines), None)
            lines[place] = [f"{name} = {value!r}"]
            self.parameters.source = "\n".join(lines)

    def forget_all(self) -> None:
        self.client.execute_cell(self.notebook.cells[-1], len(self.notebook.cells) - 1)

    def run_all(self) -> None:
        for cell in self.cells:
            self.client.execute_cell(cell, self.notebook.cells.index(cell))

    def printed(self) -> str:
        """What it shows in red: warnings and reports."""
        return "".join(output.text for output in self.outputs if output.get("name") == "stderr")

    @property
    def outputs(self) -> list[Any]:
        return [output for cell in self.cells for output in cell.outputs]


def bars(opened: Opened) -> list[str]:
    """The progress bars that a notebook shows."""
    data = [output.get("data", {}) for output in opened.outputs]
    return [shown["text/plain"] for shown in data if "application/vnd.jupyter.widget-view+json" in shown]


def without_figure(opened: Opened) -> list[str]:
    """Cells that draw, or show a file, and have no PNG: JupyterLab hides SVG in notebooks it does not trust."""
    drawing = [cell for cell in opened.cells if re.search(r"(?<!import )\b(plot_\w+|show_figure)\(", cell.source)]
    return [cell.source for cell in drawing if not any("image/png" in out.get("data", {}) for out in cell.outputs)]


@pytest.mark.parametrize("name", ROWS)
def test_run_all_twice_then_a_misspelling_then_a_change(name, checkout, kernel):
    opened, row = Opened(name, checkout, kernel), ROWS[name]
    opened.edit(row.given)
    with opened.client.setup_kernel():
        opened.forget_all()
        opened.run_all()
        assert without_figure(opened) == []
        assert opened.printed() == ""
        assert not {bar.split(":")[0] for bar in bars(opened)} & {"Writing model shards", "Loading weights"}
        opened.run_all()
        right = opened.parameters.source
        opened.edit(row.wrong)
        (misspelt,) = row.wrong
        with pytest.raises(CellExecutionError, match=rf"ParameterError: .*'{misspelt}' is not a parameter"):
            opened.run_all()
        opened.parameters.source = right
        opened.edit(row.change)
        opened.run_all()
        assert opened.printed() == ""
    assert sorted(path.name for path in (checkout / "notebooks").iterdir()) == sorted(os.listdir(NOTEBOOKS))


def test_an_arm_with_examples_of_its_own_is_trained_on_these(checkout, kernel, tmp_path):
    """Of a file of one's own, which is not below results_root."""
    load_data("mini-mrpc")["train"].to_csv(tmp_path / "pairs.csv")
    opened = Opened("compare.ipynb", checkout, kernel)
    arms = {"few": {"train_examples": 8}, "more": {"train_examples": 24}}
    opened.edit({**SMALL, "task": str(tmp_path / "pairs.csv"), "seed": 2, "arms": arms})
    with opened.client.setup_kernel():
        opened.forget_all()
        opened.run_all()
    records = [read_result(path) for path in checkout.glob("results/runs/notebook/pairs*/*/*/seed-2/result.json")]
    assert sorted(record["examples"]["train"] for record in records) == [8, 24]


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.name)
def test_a_cell_leaves_the_parameters_alone(path):
    """So that the cell that checks them can be executed again by itself: also those that have no line in the cell."""
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    (parameters,) = (cell for cell in cells if "parameters" in cell.metadata.get("tags", []))
    module, _, kind = KINDS.get(path.stem, "albert_lsh.run:Run").partition(":")
    names = assigned(parameters.source) | getattr(import_module(module), kind).model_fields.keys()
    for cell in cells:
        if cell is not parameters:
            assert not assigned(re.sub("^ *%.*", "    pass", cell.source, flags=re.MULTILINE)) & names, cell.source


def assigned(source: str) -> set[str]:
    names = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)]
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}
