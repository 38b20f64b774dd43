"""compare.ipynb: one task fine-tuned under several attentions, and a study's announcement."""

import json
import re
from pathlib import Path

import pytest

from albert_lsh.tasks.data import load_data
from albert_lsh.training.parameters import ParameterError, Parameters
from albert_study.comparison import Comparison, check_time, compare, score_and_cost
from albert_study.expected import SIZES, announcement, need
from albert_study.jobs import load_jobs
from albert_study.records import load, wide

SMALL = {"task": "mini-mrpc", "model": "mini", "train_examples": 64, "eval_examples": 32, "epochs": 1, "device": "cpu"}
VARIANTS = {"softmax": {"attention": "softmax"}, "a quarter": {"attention": "lsh", "share": 0.25}}


def test_every_variant_is_a_run_as_glue_makes_it():
    runs = Comparison.check({**SMALL, "variants": VARIANTS, "learning_rate": "1e-4"}).runs()
    lsh = {"attention": "lsh", "attention_settings": {"share": 0.25}, "learning_rate": 1e-4}
    assert list(runs) == ["softmax", "a quarter"]
    assert runs["a quarter"] == Parameters.check({**SMALL, **lsh})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "squad"}, "task='squad' belongs to squad.ipynb"),
        ({"variants": {"x": {"attention": "lhs"}}}, "variants: 'x': attention='lhs' is not one of: .*compare.ipynb"),
        ({"variants": {"x": {"attention": "window", "shares": [0.1, 0.2]}}}, "variants: 'x' is named twice"),
        ({"attention": "lsh"}, "'attention' is not a parameter of compare.ipynb"),
    ],
)
def test_what_cannot_be_compared_is_said_before_anything_is_trained(change, message):
    with pytest.raises(ParameterError, match=message):
        Comparison.check({**SMALL, "variants": VARIANTS, **change}).runs()


def test_hours_on_a_cpu_are_named_before_anything_is_loaded(tmp_path, capsys):
    """The notebook as it stands, without a GPU: ALBERT-base, three times over MRPC."""
    given = {"task": "mrpc", "model": "albert/albert-base-v2", "max_length": 64, "variants": VARIANTS, "device": "cpu"}
    asked = Comparison.check({**given, "results_root": str(tmp_path)})
    with pytest.raises(ParameterError, match='task="mini-mrpc", model="mini" for .* or take_hours=True to go on'):
        check_time(asked, asked.runs())
    assert re.search(r"without a GPU: about [\d.,]+ (hours|minutes) of training", capsys.readouterr().out)
    going_on = Comparison.check({**given, "results_root": str(tmp_path), "take_hours": True})
    check_time(going_on, going_on.runs())
    small = Comparison.check({**SMALL, "variants": VARIANTS, "results_root": str(tmp_path)})
    check_time(small, small.runs())
    assert re.search(r"about \d+ seconds of training", capsys.readouterr().out)


def test_runs_are_recorded_shown_beside_the_baselines_and_not_made_twice(tmp_path, capsys):
    runs = Comparison.check({**SMALL, "variants": VARIANTS, "results_root": str(tmp_path)}).runs()
    data = load_data("mini-mrpc", train_examples=64, eval_examples=32)
    rows = compare(runs, data)
    paths = rows["record"].unique()
    assert all(path.startswith(str(tmp_path)) for path in paths)
    assert "2 of 2: a quarter" in capsys.readouterr().out
    records = [json.loads(Path(path).read_text()) for path in paths]
    assert [record["parameters"]["attention"] for record in records] == ["softmax", "lsh"]

    table = score_and_cost(rows)
    assert list(table.index) == ["softmax", "a quarter", "majority class", "chance"]
    assert table.loc["softmax", ["pairs", "cost"]].to_list() == ["100%", "100%"]
    assert table.loc["a quarter", "pairs"] < "30%"
    assert {"mini-mrpc (accuracy)", "mini-mrpc (f1)"} <= set(table)

    assert "training" in score_and_cost(rows.assign(cores_of_others=0.1))
    assert "training" not in score_and_cost(rows.assign(cores_of_others=[0.1, *[1.0] * (len(rows) - 1)]))
    assert "training times are left out: other programs" in capsys.readouterr().out

    dates = [record["environment"]["date"] for record in records]
    compare(runs, data)
    assert "softmax: made before" in capsys.readouterr().out
    assert [json.loads(Path(path).read_text())["environment"]["date"] for path in paths] == dates


def test_operations_are_those_of_the_products_of_matrices():
    run = Parameters.check({"task": "mini-mrpc", "model": "mini", "max_length": 48, "epochs": 1})
    encoder = 2 * (4 * 96**2 + 2 * 96 * 192) + 2 * 2 * 29 * 96  # weights and attention, for a token in two passes
    assert need(run).operations == 6 * 9_000 * 29 * encoder


def test_memory_is_within_a_factor_of_two_of_what_our_runs_took(minilm):
    rows = load(study="no-training")  # of tasks whose longest texts have max_length tokens
    runs = wide(rows[(rows["kind"] == "fine-tuned") & (rows["attention"] != "")])
    for row in runs[runs["task"].isin(["mrpc", "stsb"])].to_dict("records"):
        run = Parameters.check({"model": minilm, "task": row["task"], "max_length": int(row["length"])})
        assert 0.5 < need(run).memory / row["peak_memory_bytes"] < 2


def test_a_study_says_first_what_it_will_take(monkeypatch):
    jobs = list(load_jobs("original").values())
    said = announcement(jobs)
    assert re.search(r"31 runs, \d+ at a time, about [\d.,]+ (hours|minutes) on this machine's", said)
    assert re.search(r"up to [\d.]+ GB of memory$", said)
    monkeypatch.delitem(SIZES, "mrpc")
    assert announcement(jobs).startswith("expected: 24 runs, ")
    assert announcement(jobs).endswith("; 7 other jobs are not counted")
    assert announcement([]) == ""
