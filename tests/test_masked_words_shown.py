"""The table and the figure of masked words, from made-up measurements."""

import pandas as pd
import pytest

from albert_study.evidence.masked_words import load_masked_words, masked_words_tables, plot_masked_words


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "results" / "runs" / "masked-words"
    folder.mkdir(parents=True)
    for length in (128, 32):
        rows = [("lsh", 0.5, 0.1, 0.2, 0.7), ("window", 0.5, -0.4, 2.5, 0.5), ("yoso-e", None, 1.0, 3.0, 1.0)]
        rows += [("lsh", 0.25, 0.3, 0.4, 0.4)]
        table = pd.DataFrame(rows, columns=["variant", "share_asked", "difference", "change", "cost"])
        table = table.assign(attention=table["variant"], length=length, softmax_loss=5.0, standard_error=0.05)
        table.assign(model="some/albert", commit="0123456789abc").to_csv(folder / f"{length}.csv", index=False)
        (folder / f"{length}-paragraphs.csv").write_text("variant\n")
    return tmp_path


def test_a_table_a_share_with_what_has_no_share_in_each(root):
    tables = dict(masked_words_tables(root))
    assert list(tables) == ["masked-words-50", "masked-words-25"]
    half = tables["masked-words-50"].rows
    assert list(half.index) == ["lsh", "window", "yoso-e"]  # by how much a word's loss changes
    assert half.loc["window"].tolist()[:3] == ["-0.40 ± 0.10", "2.50", "50%"]
    assert next(iter(half)).startswith("32")  # the shortest first
    assert list(tables["masked-words-25"].rows.index) == ["lsh", "yoso-e"]
    for table in tables.values():
        assert "5.00 at 32 tokens, 5.00 at 128 tokens" in table.note


def test_a_panel_a_length(root, tmp_path):
    figure = plot_masked_words(load_masked_words(root))
    assert [axis.get_title() for axis in figure.axes if axis.get_title()] == ["32 tokens", "128 tokens"]
    assert load_masked_words(tmp_path / "elsewhere").empty
    assert list(masked_words_tables(tmp_path / "elsewhere")) == []


def test_a_row_a_pass_alone_and_left_out(root):
    rows = [("all", None, 0.9), ("one", "[0]", 0.1), ("two", "[1]", 0.2), ("three", "[2]", 0.3)]
    rows += [("without one", "[1, 2]", 0.8), ("without two", "[0, 2]", 0.7), ("without three", "[0, 1]", 0.6)]
    table = pd.DataFrame(rows, columns=["variant", "passes", "change"])
    table = table.assign(attention="lsh", share_asked=0.25, length=64, softmax_loss=5.0, standard_error=0.05)
    table = table.assign(difference=-table["change"], model="some/albert", commit="0123456789abc")
    table.to_csv(root / "results/runs/masked-words/depths.csv", index=False)
    made = dict(masked_words_tables(root))["masked-words-depths"]
    assert list(made.rows.index) == ["1", "2", "3"]
    assert made.rows.loc["2"].tolist() == ["-0.20 ± 0.10", "0.20", "-0.70 ± 0.10", "0.70"]
    assert "lsh in some of a model's 3 passes" in made.note
    assert "In all passes: -0.90 ± 0.10, either way 0.90" in made.note
