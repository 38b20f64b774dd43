"""The front page's table, on made-up runs."""

import pandas as pd

from albert_study.evidence.front import front_table


def runs(task, metric, arms):
    """arms: by name the runs' scores and the cost."""
    rows = [
        {"task": task, "arm": arm, "headline": metric, "seed": seed, "score": score, "full_cost": cost}
        for arm, (scores, cost) in arms.items()
        for seed, score in enumerate(scores)
    ]
    return pd.DataFrame(rows)


def test_the_front_page_has_a_row_a_change_and_leaves_empty_what_was_not_run():
    made = {
        "albert-runs": runs("kor-sts", "pearson", {
            "softmax": ([0.9, 0.8], 1.0), "plain-lsh": ([0.1, 0.7], 0.55), "lsh": ([0.8], 1.05), "yoso-e": ([0.5], 2.0)
        }),
        "minilm-runs": runs("squad", "f1", {"softmax": ([67.0], 1.0), "lsh-half": ([66.8], 0.67), "lsh": ([1.0], 0.1)}),
    }  # fmt: skip
    made["albert-scores"] = pd.DataFrame({"task": ["kor-sts"], "majority": [0.0], "bag_of_words": [0.7]})
    made["minilm-scores"] = pd.DataFrame({"task": ["squad"], "majority": [0.03]})
    ((name, table),) = front_table(lambda of: made.get(of, pd.DataFrame()))
    assert name == "front"
    assert list(table.rows) == ["SQuAD 1.1, MiniLM (F1)", "KorSTS, ALBERT (Pearson)", "full cost"]
    assert table.rows.loc["softmax, unchanged"].tolist() == ["67.0 (1)", "0.850 ± 0.071 (2)", "100%"]
    assert table.rows.loc["**lsh**"].tolist() == ["66.8 (1)", "0.800 (1)", "67% to 105%"]
    # runs that are far apart have no mean that stands for them
    assert table.rows.loc["random hashing (plain-lsh)"].tolist() == ["", "0.100, 0.700", "55%"]
    floors = "SQuAD 1.1 always the same answer 0.0; KorSTS always the same answer 0.000, a bag of words 0.700."
    assert table.note.endswith(floors)
    assert len(table.rows) == 3  # what nobody has run is not there, nor what the page does not speak of
    assert list(front_table(lambda of: pd.DataFrame())) == []
