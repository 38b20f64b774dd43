"""What efficiency.ipynb measures: every case runs, tables are written, bad input is named. No time is asserted."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from albert_lsh.attention import coverage
from albert_lsh.files import repository_root
from albert_lsh.run import ParameterError
from albert_study.efficiency.contenders import CONTENDERS
from albert_study.efficiency.figures import redraw, save_efficiency
from albert_study.efficiency.measure import GrowingTable, measure_efficiency, measure_memory
from albert_study.efficiency.parameters import STEPS, EfficiencyParameters
from albert_study.efficiency.workloads import inputs, measure_memory_here
from albert_study.evidence.growth import crossing_bounds, slopes
from albert_study.study_file import load_file

FEW = {"lengths": [128], "cases": ["softmax", "lsh"], "step_lengths": [], "step_cases": [], "keys": 64, "repeats": 1}


def ask(folder, **change) -> EfficiencyParameters:
    return EfficiencyParameters.check({**FEW, "output_dir": str(folder), "figures_dir": str(folder), **change})


def test_every_case_is_measured_and_drawn(tmp_path):
    steps = {"step_lengths": [64], "step_cases": ["softmax", "lsh"]}
    asked = ask(tmp_path, lengths=[64], cases=list(CONTENDERS), memory=False, **steps)
    save_efficiency(measure_efficiency(asked), asked.figures_dir)
    table = pd.read_csv(tmp_path / "time-cpu-fp32.csv")
    assert set(zip(table["case"], table["pass"], strict=True)) == {
        (case, name) for case in CONTENDERS for name in ("forward", "forward+backward")
    }
    assert list(pd.read_csv(tmp_path / "step-cpu-fp32.csv")["case"]) == ["softmax", "lsh"]
    assert (tmp_path / "efficiency-time.svg").exists()


@pytest.mark.parametrize("name", ["plain-lsh", "plain-lsh, one round", "lsh", "lsh, window, far field", "random"])
def test_contenders_have_the_same_number_of_keys(name, tmp_path):
    query, key, _ = inputs(512, ask(tmp_path))
    contender = CONTENDERS[name]
    seen = coverage(contender.attention, query, key, **contender.settings(512, 64)).pairs
    assert 0.6 * 64 / 512 < seen <= 64 / 512


def test_memory_is_that_of_matrices_or_of_a_step(tmp_path):
    """The eager form keeps two matrices of 12 x 512 x 512 numbers at least, lsh none of 12 x 2,048 x 2,048; a step of
    ALBERT-base has gradients and AdamW's two averages of 11.7 million weights."""
    asked = ask(tmp_path, lengths=[512], cases=["softmax", "softmax-eager"])
    timed = pd.DataFrame({"case": ["softmax-eager", "lsh"], "length": [512, 512]})
    table = measure_memory(asked, timed)  # in a process of its own
    assert table["case"].tolist() == ["softmax-eager"]
    assert table["bytes"][0] > 2 * 12 * 512**2 * 4
    assert 2 * 2**20 < measure_memory_here("attention", "lsh", 2048, asked) < 12 * 2048**2 * 4
    assert measure_memory_here("step", "softmax, recomputed", 64, asked) > 3 * 11_700_000 * 4


def test_what_is_measured_is_kept_and_what_is_missing_is_added(tmp_path):
    first = measure_efficiency(ask(tmp_path, cases=["softmax"], memory=False))["time"]
    both = measure_efficiency(ask(tmp_path, memory=False))["time"]
    assert list(both["case"]) == ["softmax", "softmax", "lsh", "lsh"]
    assert both["seconds"][:2].tolist() == first["seconds"].tolist()
    with pytest.raises(ParameterError, match=r"time-cpu-fp32.csv has .*128.* measured with \{'keys': 64\}, not .*128"):
        measure_efficiency(ask(tmp_path, keys=128, memory=False))


def test_what_is_measured_is_told_and_what_is_there_is_not(tmp_path, capsys):
    measure_efficiency(ask(tmp_path, lengths=[64, 128], memory=False))
    told = [line.split("  ")[1] for line in capsys.readouterr().out.splitlines()]
    assert told[0] == "time, forward, length 1 of 2, 64 tokens: softmax; lsh"
    assert told[-1] == "time, forward+backward, length 2 of 2, 128 tokens: softmax; lsh"
    measure_efficiency(ask(tmp_path, lengths=[64, 128], memory=False))
    assert capsys.readouterr().out == ""


def test_the_study_asks_for_everything():
    """So that the notebook's defaults, which are for a quick look, decide nothing in it."""
    names = {field.name for field in dataclasses.fields(EfficiencyParameters)} - {"results_root"}
    for label, given in load_file("efficiency")["notebooks"].items():
        assert set(given) - {"notebook"} == names, label
        assert given["output_dir"].startswith("results/efficiency")


def test_an_interrupted_table_goes_on_and_appears_when_it_is_finished(tmp_path):
    path, row = tmp_path / "time.csv", {"case": "lsh", "length": 64, "keys": 8}
    GrowingTable(path).add([row])
    assert not path.exists()
    table = GrowingTable(path)
    assert not table.lacks({"case": "lsh", "length": 64}, keys=8)
    assert table.lacks({"case": "lsh", "length": 128}, keys=8)
    table.add([{**row, "length": 128}])
    assert list(table.finish()["length"]) == [64, 128]
    assert [p.name for p in tmp_path.iterdir()] == ["time.csv"]


def test_what_is_slow_is_left_out_at_longer_lengths(tmp_path):
    table = measure_efficiency(ask(tmp_path, lengths=[64, 128], slowest=0.0, memory=False))["time"]
    assert set(table["length"]) == {64}


def test_the_reports_figures_are_drawn_again_from_what_was_measured(tmp_path):
    assert redraw(tmp_path) == []
    for name in ("time", "memory"):
        path = repository_root() / "results" / "efficiency" / f"{name}-cpu-fp32.csv"
        (tmp_path / "results" / "efficiency").mkdir(parents=True, exist_ok=True)
        (tmp_path / "results" / "efficiency" / path.name).write_text(path.read_text())
    drawn = [path.relative_to(tmp_path) for path in redraw(tmp_path)]
    assert [path.name for path in drawn] == ["efficiency-time.svg", "efficiency-memory.svg"]
    for path in drawn:  # the committed ones are not older than their tables
        assert (tmp_path / path).read_text() == (repository_root() / path).read_text()


def test_slopes_are_powers_of_the_length():
    lengths = np.array([2048, 4096, 8192])
    rows = pd.DataFrame(
        {"case": ["a"] * 3 + ["b"] * 3, "length": [*lengths, *lengths], "seconds": [*lengths**2, *lengths]}
    )
    assert slopes(rows, "seconds").to_dict() == pytest.approx({"a": 2, "b": 1})


def crossing(seconds, origins=("a", "a", "a")):
    rows = [
        (case, length, s, "cpu", origin)
        for case, column in seconds.items()
        for length, s, origin in zip((512, 1024, 2048), column, origins, strict=True)
    ]
    return pd.DataFrame(rows, columns=["case", "length", "seconds", "device", "commit"])


TIMES = {"softmax": [1, 4, 16], "early": [0.5, 1, 2], "late": [2, 4.0001, 8], "never": [2, 8, 32]}


def test_crossings_are_interpolated():
    found = crossing_bounds(crossing(TIMES))
    assert found.loc["early"].tolist() == [0, 512]  # faster at the smallest length
    assert found.loc["late"].tolist() == pytest.approx([1024, 1024], rel=1e-3)
    assert found.loc["never"].isna().all()


@pytest.mark.parametrize("column", ["device", "commit"])
def test_between_two_machines_a_crossing_is_not_interpolated(column):
    table = crossing({"softmax": [1, 4, 16], "first": [2, 3, 4], "second": [2, 5, 4]})
    table.loc[table["length"] == 512, column] = "another"
    bounds = crossing_bounds(table)
    assert bounds.loc["first"].tolist() == [512, 1024]
    assert bounds.loc["second", "above"] == bounds.loc["second", "up_to"] != 1024


def test_a_case_that_was_timed_at_another_commit_than_softmax_is_not_interpolated():
    table = crossing({"softmax": [1, 4, 16], "case": [2, 8, 8]})
    table.loc[table["case"] == "case", "commit"] = "another"
    assert crossing_bounds(table).loc["case"].tolist() == [1024, 2048]


def test_a_length_where_one_was_timed_on_another_machine_does_not_count():
    table = crossing({"softmax": [1, 4, 16], "case": [2, 1, 8]})
    table.loc[(table["length"] == 1024) & (table["case"] == "case"), "device"] = "another"
    assert crossing_bounds(table).loc["case"].tolist() == pytest.approx(
        [1024, 1024]
    )  # 2 times as slow at 512, twice as fast at 2,048


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cases": ["lhs"]}, "cases: 'lhs' is not one of: softmax"),
        ({"lengths": []}, "lengths=.*at least 1 item"),
        ({"cases": ["lsh"]}, "cases must have 'softmax', with which the others are compared"),
        ({"step_lengths": [64], "step_cases": ["lsh"]}, "step_cases must have 'softmax'"),
        ({"step_cases": ["yoso-e, transformers"]}, "step_cases: 'yoso-e, transformers' is not one of: softmax"),
        ({"lengths": [100]}, "100 is no power of two"),
        ({"step_lengths": ["many"]}, r"step_lengths\[0\]='many' must be a valid integer"),
        ({"keys": 32}, "keys=32 must be greater than or equal to 64"),
        ({"precision": "fp64"}, "precision='fp64' must be 'auto', 'fp32', 'bf16' or 'fp16'"),
        ({"device": "cuda"}, "memory=True needs device='cpu', not 'cuda'"),
        ({"repeat": 3}, "'repeat' is not a parameter of efficiency.ipynb; did you mean 'repeats'"),
    ],
)
def test_bad_parameters_are_named(change, message, tmp_path):
    with pytest.raises(ParameterError, match=message):
        ask(tmp_path, **change)


def test_a_step_can_have_any_attention_that_a_model_can():
    assert set(STEPS) >= {"softmax", "lsh", "plain-lsh", "yoso", "shared-qk-lsh", "reformer-pytorch", "lsh, recomputed"}
    assert "nystrom, transformers" not in STEPS
