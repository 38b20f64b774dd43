"""The efficiency notebook: every case runs, tables are written, bad parameters are named. No time is asserted."""

import pandas as pd
import papermill
import pytest
import torch
from albert_lsh.attention import coverage
from albert_lsh.efficiency import CASES, Measuring, default_lsh, inputs, memories, plain, slopes
from albert_lsh.runs import ParameterError
from test_study import ROOT


def test_the_notebook_runs_every_case(tmp_path):
    parameters = {"lengths": [128, 256], "cases": list(CASES), "keys": 64, "repeats": 1, "memory": False}
    papermill.execute_notebook(
        ROOT / "notebooks" / "efficiency.ipynb",
        tmp_path / "out.ipynb",
        parameters={**parameters, "output_dir": str(tmp_path)},
        kernel_name="python3",
        progress_bar=False,
    )
    table = pd.read_csv(tmp_path / "time-cpu-fp32.csv")
    assert len(table) == len(CASES) * 2 * 2
    assert (table["least"] <= table["seconds"]).all()
    assert (table["seconds"] <= table["most"]).all()
    assert set(slopes(table, "seconds", least=128).index) == set(CASES)


def test_cases_have_the_same_number_of_keys():
    query, key, _ = inputs(512, Measuring([512], ["lsh"], keys=64))
    for settings in (plain(64), default_lsh(512, 64)):
        seen = coverage("lsh", query, key, **settings).pairs
        assert 0.6 * 64 / 512 < seen <= 64 / 512


def test_peak_memory_is_that_of_a_process_of_its_own():
    """The eager form keeps two matrices of 12 x 1,024 x 1,024 numbers at least; fused attention none."""
    ballast = torch.ones(2**28)  # what the parent holds, or held at its peak, must not count
    table = memories(Measuring([1024], ["softmax", "softmax-eager"], keys=64)).set_index("case")["bytes"]
    assert table["softmax-eager"] > 2 * 12 * 1024**2 * 4
    assert 2 * 2**20 < table["softmax"] < 12 * 1024**2 * 4
    assert ballast.sum() > 0


def test_every_case_gives_an_output_of_its_value_shape():
    tensors = inputs(256, Measuring([256], ["lsh"], keys=64))
    for name, build in CASES.items():
        out = build(256, 64)(*tensors)
        assert out.shape == tensors[2].shape, name
        assert torch.isfinite(out).all(), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cases": ["lhs"]}, "cases: 'lhs' is not one of: softmax"),
        ({"lengths": [64]}, "lengths: 64 must be a whole number, keys / 4 or more"),
        ({"repeat": 3}, "'repeat' is not a parameter of efficiency.ipynb; did you mean 'repeats'"),
    ],
)
def test_bad_parameters_are_named(change, message):
    with pytest.raises(ParameterError, match=message):
        Measuring.check({"lengths": [1024], "cases": ["lsh"], **change})
