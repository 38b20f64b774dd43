"""Executed notebooks are kept without folders of the machine that made them, and without texts of others."""

import nbformat
import pytest

from albert_study.executed import clean, without_folders

KEPT = "results/runs/x/notebook.partial.ipynb"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("/home/me/albert/results/runs/x/result.json\n", "results/runs/x/result.json\n"),
        ("output_dir='/work/scratch/clone/results/runs/a', seed=0", "output_dir='results/runs/a', seed=0"),
        ("<td>/mnt/c/clone/results/runs/minilm/a...</td>", "<td>results/runs/minilm/a...</td>"),
        ("/tmp/ipykernel_24288/361678337.py:3: UserWarning", "361678337.py:3: UserWarning"),
        ("\x1b[32m/opt/env/lib/site-packages/pandas/x.py:7\x1b[39m", "\x1b[32msite-packages/pandas/x.py:7\x1b[39m"),
        ('figures_dir = "/work/scratch/bench"', 'figures_dir = "bench"'),
        ("model at /data/me/nano/ and lib", "model at nano and lib"),
    ],
)  # fmt: skip
def test_an_absolute_path_is_kept_from_the_checkout_on(text, kept):
    assert without_folders(text) == kept


@pytest.mark.parametrize(
    "text",
    ["https://a.com/github/a/b.ipynb", "<b>1</b> 3/4/5", "results/runs/x.csv", "../shared/a/b", "(…)/a/b"],
)
def test_what_is_no_absolute_path_stays(text):
    assert without_folders(text) == text


def notebook():
    """With a folder in every place where papermill or a cell may leave one."""
    output = nbformat.v4.new_output(
        "display_data", data={"text/html": "<td>/a/b/results/c</td>", "image/png": "/a/b/c"}
    )
    shown = nbformat.v4.new_code_cell('path = "/a/b/lib/albert_lsh/x"', outputs=[output])
    examples = nbformat.v4.new_code_cell("data", metadata={"tags": ["examples"]})
    examples.outputs = [nbformat.v4.new_output("stream", text="a text of others")]
    about = {"input_path": "/a/b/notebooks/glue.ipynb", "output_path": f"/a/b/{KEPT}", "parameters": {"x": ["/a/b"]}}
    return nbformat.v4.new_notebook(cells=[shown, examples], metadata={"papermill": about})


def cleaned(path, ours):
    nbformat.write(notebook(), path)
    clean(path, ours)
    return nbformat.read(path, as_version=4)


def test_a_notebook_is_cleaned_everywhere_but_in_its_pictures(tmp_path):
    kept = cleaned(tmp_path / "x.ipynb", ours=False)
    assert kept.cells[0].source == 'path = "lib/albert_lsh/x"'
    assert kept.cells[0].outputs[0].data == {"text/html": "<td>results/c</td>", "image/png": "/a/b/c"}
    assert kept.cells[1].outputs == []
    about = {"input_path": "notebooks/glue.ipynb", "output_path": "results/runs/x/notebook.ipynb"}
    assert kept.metadata.papermill == {**about, "parameters": {"x": ["b"]}}


def test_examples_of_our_own_data_stay(tmp_path):
    assert cleaned(tmp_path / "x.ipynb", ours=True).cells[1].outputs
