"""What efficiency.ipynb measures: every case runs, tables are written, bad input is named. No time is asserted."""

import pandas as pd
import pytest

from albert_lsh.attention import coverage
from albert_study.experiments.efficiency import (
    CONTENDERS,
    Efficiency,
    crossing_bounds,
    inputs,
    measure_efficiency,
    peak_memory,
)
from albert_study.figures import plot_efficiency
from albert_study.study import load_jobs

FEW = {
    "lengths": [128],
    "cases": ["softmax", "key-clusters"],
    "step_lengths": [],
    "step_cases": [],
    "keys": 64,
    "repeats": 1,
}


def ask(folder, **change) -> Efficiency:
    return Efficiency.parse({**FEW, "output_dir": str(folder), "memory": False, **change})


def test_every_case_is_measured_and_drawn(tmp_path, capsys):
    steps = {"step_lengths": [64], "step_cases": ["softmax", "key-clusters"]}
    settings = ask(tmp_path, lengths=[64], cases=list(CONTENDERS), **steps)
    tables = measure_efficiency(settings)
    assert "time-cpu-fp32, length 64, pass forward, keys 64: softmax; softmax-eager" in capsys.readouterr().out
    table = pd.read_csv(tmp_path / "time-cpu-fp32.csv")
    assert set(zip(table["case"], table["pass"], strict=True)) == {
        (case, name) for case in CONTENDERS for name in ("forward", "forward+backward")
    }
    assert list(pd.read_csv(tmp_path / "step-cpu-fp32.csv")["case"]) == ["softmax", "key-clusters"]
    assert list(plot_efficiency(tables)) == ["efficiency-time"]


def test_contenders_have_the_same_number_of_keys(tmp_path):
    query, key, _ = inputs(512, ask(tmp_path))
    for name in ("lsh", "lsh, one round", "key-clusters", "random"):
        contender = CONTENDERS[name]
        seen = coverage(contender.attention, query, key, **contender.settings(512, 64)).pairs
        assert 0.6 * 64 / 512 < seen <= 64 / 512


def test_memory_is_that_of_matrices_or_of_a_step(tmp_path):
    """The eager form keeps two matrices of 12 x 512 x 512 numbers at least, key-clusters none of 12 x 2,048 x 2,048; a
    step of ALBERT-base has gradients and AdamW's two averages of 11.7 million weights."""
    settings = ask(tmp_path, lengths=[512], cases=["softmax", "softmax-eager"], memory=True)
    table = measure_efficiency(settings)["memory"].set_index("case")["bytes"]  # each in a process of its own
    assert table["softmax-eager"] > 2 * 12 * 512**2 * 4
    assert 2 * 2**20 < peak_memory("attention", "key-clusters", 2048, settings) < 12 * 2048**2 * 4
    assert peak_memory("step", "softmax, recomputed", 64, settings) > 3 * 11_700_000 * 4


def test_what_is_measured_is_kept_and_what_is_missing_is_added(tmp_path, capsys):
    first = measure_efficiency(ask(tmp_path, cases=["softmax"]))["time"]
    both = measure_efficiency(ask(tmp_path))["time"]
    assert sorted(both["case"]) == ["key-clusters", "key-clusters", "softmax", "softmax"]
    assert both[both["case"] == "softmax"]["seconds"].tolist() == first["seconds"].tolist()
    capsys.readouterr()
    assert measure_efficiency(ask(tmp_path))["time"]["seconds"].equals(both["seconds"])
    assert capsys.readouterr().out == ""
    more = measure_efficiency(ask(tmp_path, keys=128, lengths=[128, 256], slowest=0.0))["time"]
    assert set(zip(more["keys"], more["length"], strict=True)) == {(128, 128)}  # slow at 128, left out at 256
    assert len(pd.read_csv(tmp_path / "time-cpu-fp32.csv")) == 8


def test_the_study_asks_for_everything():
    """So that the notebook's defaults, which are for a quick look, decide nothing in it."""
    for job in load_jobs("efficiency").values():
        assert set(job.parameters) == Efficiency.model_fields.keys() - {"results_root"}, job.name
        assert job.parameters["output_dir"].startswith("results/efficiency")


# What figures and tables make of them


def times(seconds):
    rows = [(case, length, value, "cpu", "a") for case, column in seconds.items()
            for length, value in zip((2048, 4096, 8192), column, strict=True)]  # fmt: skip
    return pd.DataFrame(rows, columns=["case", "length", "seconds", "device", "commit"])


def test_a_case_timed_elsewhere_than_softmax_is_not_interpolated_and_on_another_machine_does_not_count():
    """How lengths between are interpolated is held by results/tables/efficiency.md."""
    bounds = crossing_bounds(times({"softmax": [1, 4, 16], "case": [0.5, 1, 2]}))
    assert bounds.loc["case"].tolist() == [0, 2048]  # faster at the smallest length
    table = times({"softmax": [1, 4, 16], "case": [2, 8, 8]})
    table.loc[table["case"] == "case", "commit"] = "another"
    assert crossing_bounds(table).loc["case"].tolist() == [4096, 8192]
    table = times({"softmax": [1, 4, 16], "case": [2, 1, 8]})  # twice as slow at 2,048, twice as fast at 8,192
    table.loc[(table["length"] == 4096) & (table["case"] == "case"), "device"] = "another"
    assert crossing_bounds(table).loc["case"].tolist() == pytest.approx([4096, 4096])
