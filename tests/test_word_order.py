"""Runs that also answer texts with shuffled words."""

import pytest

from albert_lsh.record import read_predictions, read_result
from albert_lsh.run import Run
from albert_lsh.train import fit
from albert_study.compare import shuffled
from albert_study.figures import draw_figures
from albert_study.records import load

SMALL = {"model": "mini", "max_length": 32, "train_examples": 64, "eval_examples": 50, "epochs": 1}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for arm in ("softmax", "window"):
        for seed in (0, 1):
            folder = root / "results" / "runs" / "order" / "mini-sst2" / "mini" / arm / f"seed-{seed}"
            changes = {"attention": arm, "seed": seed, "shuffle_words": 0, "output_dir": str(folder)}
            fit(Run.parse({**SMALL, "task": "mini-sst2", **changes}))
    return root


def test_a_run_keeps_its_answers_to_both_and_its_record_both_scores(root):
    folder = root / "results/runs/order/mini-sst2/mini/softmax/seed-0"
    record, table = read_result(folder / "result.json"), read_predictions(folder / "predictions.parquet")
    plain, mixed = (table[table["split"] == split].reset_index(drop=True) for split in ("validation", "shuffled"))
    assert plain["id"].equals(mixed["id"])
    right = [(answers["label"] == answers["answer"]).mean() for answers in (plain, mixed)]
    assert record["metrics"] == dict(zip(("accuracy", "accuracy_shuffled"), right, strict=True))
    assert record["examples"] == {"train": 64, "validation": 50, "shuffled": 50}
    assert record["headline"]["value"] == record["metrics"]["accuracy"]


def test_both_scores_are_in_the_table_and_drawn(root):
    words = root / "results/runs/order/words.csv"
    words.write_text("task,train,headline\nmini-sst2,64,0.7\n")
    table = shuffled(load(root, "order"), root)
    lines = table[["arm", "seeds", "train_examples", "bag_of_words"]].values.tolist()
    assert lines == [["softmax", 2, 64, 0.7], ["window", 2, 64, 0.7]]
    assert table["difference"].tolist() == pytest.approx((table["shuffled"] - table["score"]).tolist())
    (root / "results/tables").mkdir()
    table.to_csv(root / "results/tables/order-shuffled.csv")
    figure = draw_figures("order", root)["order-shuffled"]
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["softmax", "nearest keys"]
