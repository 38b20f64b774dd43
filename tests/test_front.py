"""The front page's table, on made-up scores."""

import pandas as pd

from albert_study.evidence.front import front_table


def scores(task, metric, arms):
    """arms: score and cost by name."""
    values, costs = zip(*arms.values(), strict=True)
    rows = {"task": task, "model": "m", "arm": list(arms), "headline": metric, "seeds": 1, metric: values}
    rows |= {
        f"sd.{metric}": None,
        "full_cost": costs,
        "attended_share": 1.0,
        f"majority.{metric}": 0.5,
        f"chance.{metric}": 0.25,
    }
    return pd.DataFrame(rows | {"bag_of_words": 0.6})


def test_the_front_page_names_changes_in_words_with_the_range_of_their_costs():
    made = {
        "albert-scores": scores(
            "kor-qpair", "accuracy", {"softmax": (0.9, 1.0), "lsh": (0.8, 1.5), "yoso-e": (0.7, 2.0)}
        ),
        "minilm-scores": scores("stsb", "pearson", {"lsh": (0.7, 1.05)}),
    }
    ((name, table),) = front_table(lambda of: made[of])
    assert name == "front"
    assert list(table.rows) == ["question pairs, ALBERT (accuracy)", "STS-B, MiniLM (Pearson)", "pairs seen", "cost"]
    assert table.rows.loc["softmax, unchanged"].tolist() == ["0.900 (1)", "", "100%", "100%"]
    assert table.rows.loc["**lsh**, ½"].tolist() == [
        "0.800 (1)",
        "0.700 (1)",
        "100%",
        "105% to 150%",
    ]
    assert table.rows.loc["always the same answer"].tolist() == ["0.500", "0.500", "", ""]
    assert len(table.rows) == 4  # what nobody has run is not there, nor what the page does not speak of
    assert list(front_table(lambda of: pd.DataFrame())) == []
