"""The efficiency notebook: every case runs, tables are written, bad parameters are named. No time is asserted."""

import numpy as np
import pandas as pd
import papermill
import pytest
import torch

from albert_lsh.attention import coverage
from albert_lsh.training.parameters import ParameterError
from albert_study.efficiency import measure
from albert_study.efficiency.cases import CASES
from albert_study.efficiency.measure import (
    STEPS,
    Measuring,
    crossing_bounds,
    crossings,
    fill,
    inputs,
    memories,
    slopes,
    times,
)
from test_study import ROOT


def measuring(tmp_path, **change) -> Measuring:
    few = {
        "lengths": [128],
        "cases": ["softmax", "lsh"],
        "step_lengths": [],
        "step_cases": [],
        "keys": 64,
        "repeats": 1,
    }
    return Measuring.check({**few, "output_dir": str(tmp_path), **change})


def test_the_notebook_measures_every_case_and_draws(tmp_path):
    parameters = {"lengths": [64, 128], "cases": list(CASES), "keys": 64, "repeats": 1, "memory": False}
    parameters |= {"step_lengths": [64], "step_cases": ["softmax", "lsh"], "text_length": 128, "text_model": None}
    papermill.execute_notebook(
        ROOT / "notebooks" / "efficiency.ipynb",
        tmp_path / "out.ipynb",
        parameters={**parameters, "output_dir": str(tmp_path), "figures_dir": str(tmp_path)},
        kernel_name="python3",
        progress_bar=False,
    )
    table = pd.read_csv(tmp_path / "time-cpu-fp32.csv")
    assert len(table) == len(CASES) * 2 * 2
    assert (table["least"] <= table["seconds"]).all()
    assert (table["seconds"] <= table["most"]).all()
    assert set(slopes(table, "seconds", least=64).index) == set(CASES)
    assert list(pd.read_csv(tmp_path / "step-cpu-fp32.csv")["case"]) == ["softmax", "lsh"]
    assert (tmp_path / "efficiency-time.svg").exists()


@pytest.mark.parametrize("name", ["plain lsh", "plain lsh, one round", "lsh", "lsh, window, far field"])
def test_cases_have_the_same_number_of_keys(name, tmp_path):
    query, key, _ = inputs(512, measuring(tmp_path))
    seen = coverage("lsh", query, key, **CASES[name].settings(512, 64)).pairs
    assert 0.6 * 64 / 512 < seen <= 64 / 512


def test_peak_memory_is_that_of_a_process_of_its_own(tmp_path):
    """The eager form keeps two matrices of 12 x 1,024 x 1,024 numbers at least; fused attention none."""
    ballast = torch.ones(2**28)  # what the parent holds, or held at its peak, must not count
    asked = measuring(tmp_path, lengths=[1024], cases=["softmax", "softmax-eager"])
    timed = pd.DataFrame({"case": asked.cases, "length": [1024, 1024]})
    table = memories(asked, timed).set_index("case")["bytes"]
    assert table["softmax-eager"] > 2 * 12 * 1024**2 * 4
    assert 2 * 2**20 < table["softmax"] < 12 * 1024**2 * 4
    assert ballast.sum() > 0


def test_a_recomputed_step_takes_less_memory(tmp_path):
    asked = measuring(tmp_path, step_lengths=[512], step_cases=["softmax", "softmax, recomputed"])
    nothing = pd.DataFrame({"case": [], "length": []})
    table = memories(asked, nothing).set_index("case")["bytes"]
    assert table["softmax, recomputed"] < 0.7 * table["softmax"]


def test_memory_is_linear_in_the_length(tmp_path):
    """Nothing of length x length numbers: at four times the length not much more than four times the memory."""
    asked = measuring(tmp_path, lengths=[1024, 4096], cases=["plain lsh, each key once", "lsh"])
    timed = pd.DataFrame([(case, x) for case in asked.cases for x in asked.lengths], columns=["case", "length"])
    table = memories(asked, timed).pivot(index="case", columns="length", values="bytes")
    assert (table[4096] < 6 * table[1024]).all()


def test_an_interrupted_measurement_goes_on_where_it_was(tmp_path, monkeypatch):
    asked, begun = measuring(tmp_path, lengths=[128, 256]), []

    def stop(length, *_):
        begun.append(length)
        if begun == [128, 256]:
            raise KeyboardInterrupt
        return inputs(length, asked)

    monkeypatch.setattr(measure, "inputs", stop)
    with pytest.raises(KeyboardInterrupt):
        times(asked)
    assert not asked.table("time").exists()
    assert set(times(asked)["length"]) == {128, 256}
    assert begun == [128, 256, 256]
    assert sorted(tmp_path.iterdir()) == [asked.table("time"), asked.table("time").with_suffix(".json")]


def test_what_is_slow_is_left_out_at_longer_lengths(tmp_path):
    table = times(measuring(tmp_path, lengths=[64, 128], slowest=0.0))
    assert set(table["length"]) == {64}


def test_a_finished_table_is_not_overwritten_and_an_interrupted_one_of_other_parameters_not_mixed_in(tmp_path):
    """Two lengths are asked for; the second one fails. Then another case is asked for, and then the first again."""

    def broken(rows, length):
        if length == 128:
            raise RuntimeError
        return [{"case": "softmax", "length": length, "seconds": 1.0}]

    def whole(rows, length):
        return [{"case": "lsh", "length": length, "seconds": float(len(rows))}]

    path, units = tmp_path / "time.csv", [{"length": 64}, {"length": 128}]
    with pytest.raises(RuntimeError):
        fill(path, {"cases": ["softmax"]}, units, broken)
    table = fill(path, {"cases": ["lsh"]}, units, whole)
    assert list(table["case"]) == ["lsh", "lsh"]
    assert fill(path, {"cases": ["lsh"]}, units, broken).equals(table)  # finished: nothing is measured
    with pytest.raises(ParameterError, match=r"time.csv is there, measured with other parameters; delete it"):
        fill(path, {"cases": ["softmax"]}, units, whole)
    path.unlink()
    table = fill(path, {"cases": ["softmax"]}, units, whole)
    assert list(table["case"]) == ["softmax", "lsh"]  # the interrupted one goes on
    assert sorted(p.name for p in tmp_path.iterdir()) == ["time.csv", "time.json"]


def crossing(seconds, origins=("a", "a", "a")):
    rows = [
        (case, length, s, "cpu", origin)
        for case, column in seconds.items()
        for length, s, origin in zip((512, 1024, 2048), column, origins, strict=True)
    ]
    return pd.DataFrame(rows, columns=["case", "length", "seconds", "device", "commit"])


TIMES = {"softmax": [1, 4, 16], "early": [0.5, 1, 2], "late": [2, 4.0001, 8], "never": [2, 8, 32]}


def test_crossings_are_interpolated():
    found = crossings(crossing(TIMES))
    assert found["early"] == pytest.approx(512)
    assert found["late"] == pytest.approx(1024, rel=1e-3)
    assert np.isnan(found["never"])


@pytest.mark.parametrize("column", ["device", "commit"])
def test_between_two_machines_a_crossing_is_not_interpolated(column):
    table = crossing({"softmax": [1, 4, 16], "first": [2, 3, 4], "second": [2, 5, 4]})
    table.loc[table["length"] == 512, column] = "another"
    bounds = crossing_bounds(table)
    assert bounds.loc["first"].tolist() == [512, 1024]
    assert bounds.loc["second", "above"] == bounds.loc["second", "up_to"] != 1024
    assert crossings(table).isna().to_dict() == {"first": True, "second": False}


def test_a_length_where_one_was_timed_on_another_machine_does_not_count():
    table = crossing({"softmax": [1, 4, 16], "case": [2, 1, 8]})
    table.loc[(table["length"] == 1024) & (table["case"] == "case"), "device"] = "another"
    assert crossings(table)["case"] == pytest.approx(1024)  # 2 times as slow at 512, twice as fast at 2,048


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cases": ["lhs"]}, "cases: 'lhs' is not one of: softmax"),
        ({"lengths": []}, r"lengths=\[\] must name one or more"),
        ({"step_cases": ["yoso-e, transformers"]}, "step_cases: 'yoso-e, transformers' is not one of: softmax"),
        ({"lengths": [100]}, "lengths: 100 must be a power of two, 64 or more"),
        ({"step_lengths": ["512"]}, "step_lengths: '512' must be a power of two"),
        ({"keys": 100}, "keys=100 must be a power of two"),
        ({"precision": "fp64"}, "precision='fp64' is not one of: fp32, bf16, fp16"),
        ({"device": "cuda"}, "memory=True needs device='cpu', not 'cuda'"),
        ({"device": "gpu", "memory": False}, "device='gpu' is not one of: auto, cpu, cuda"),
        ({"repeats": 0}, "repeats=0 must be 1 or more"),
        ({"repeat": 3}, "'repeat' is not a parameter of efficiency.ipynb; did you mean 'repeats'"),
    ],
)
def test_bad_parameters_are_named(change, message, tmp_path):
    with pytest.raises(ParameterError, match=message):
        measuring(tmp_path, **change)


def test_a_step_can_have_any_attention_that_a_model_can():
    assert set(STEPS) >= {"softmax", "lsh", "nystrom", "yoso", "shared-qk-lsh", "reformer-pytorch", "lsh, recomputed"}
    assert "nystrom, transformers" not in STEPS
