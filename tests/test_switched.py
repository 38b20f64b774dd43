"""Models whose attention was switched: what is kept of their scores, as tables and as a figure."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

from albert_lsh.files import repository_root
from albert_study.evidence.looks import save
from albert_study.evidence.readable import readable_tables
from albert_study.evidence.readable_studies import switched_tables
from albert_study.evidence.records import load_switched
from albert_study.evidence.switched import kept_between, plot_switched, switched_table
from albert_study.evidence.tables import write_tables


@pytest.fixture
def switched(tmp_path):
    """The records of the study `no-training`, without models, as a clone has them."""
    here = "results/runs/no-training"
    shutil.copytree(repository_root() / here, tmp_path / here)
    shutil.copytree(repository_root() / "studies", tmp_path / "studies")
    return tmp_path


def test_the_share_asked_for_is_a_number_and_no_part_of_a_name(switched):
    rows = load_switched("no-training", switched)
    assert set(rows["share_asked"]) == {0.5, 0.33, 0.25, 0.125}
    assert not rows["variant"].str.contains(r"\d").any()
    table = readable_tables(repository_root())["no-training-switched-stsb"].rows
    assert [name for name in table if "," not in name] == ["50%", "33%", "25%", "12.5%"]


def test_the_note_on_a_table_says_of_how_many_models_its_rows_are(switched):
    rows = switched_table(load_switched("no-training", switched))
    tables = dict(switched_tables("a", lambda name: rows if name == "a-switched" else pd.DataFrame()))
    assert "1000 examples, 1 to 2 models. " in tables["a-switched-squad"].note
    assert "408 examples, 1 model. " in tables["a-switched-mrpc"].note


def test_a_model_that_has_nothing_to_keep_is_drawn(switched, tmp_path):
    """Its score is the majority class's, so that the upper part of the figure is empty."""
    rows = load_switched("no-training", switched)
    table = switched_table(rows[(rows["task"] == "mrpc") & (rows["variant"] == "lsh")])
    nothing = table.assign(kept=float("nan"), kept_low=float("nan"), kept_high=float("nan"))
    assert save(plot_switched(nothing), tmp_path / "figure")[0].read_text().startswith("<?xml")


def test_what_is_kept_lies_in_its_interval_and_softmax_keeps_all(switched):
    rows = load_switched("no-training", switched)
    table = switched_table(rows[(rows["task"] == "mrpc") & rows["variant"].isin(["lsh", "window"])])
    assert ((table["kept_low"] < table["kept"]) & (table["kept"] < table["kept_high"])).all()
    row = rows[rows["variant"] == "lsh"].iloc[:1]
    folder = switched / "same"
    folder.mkdir()
    for name in ("softmax", f"lsh {row['share_asked'].iloc[0]}"):
        shutil.copy(Path(row["folder"].iloc[0]) / "softmax.parquet", folder / f"{name}.parquet")
    assert kept_between(row.assign(folder=str(folder))) == (1, 1)


def test_tables_of_a_study_are_not_made_without_some_of_its_models(switched):
    written = {path: path.read_bytes() for path in write_tables("no-training", root=switched)}
    gone = switched / "results/runs/no-training/mrpc/all-MiniLM-L6-v2/softmax/seed-0/fidelity-validation.csv"
    gone.rename(gone.with_suffix(".elsewhere"))
    with pytest.raises(ValueError, match="no-training, validation: 5 of 6 tables are there; missing: .*mrpc.*seed-0"):
        write_tables("no-training", root=switched)
    gone.with_suffix(".elsewhere").rename(gone)
    assert {path: path.read_bytes() for path in written} == written


def test_runs_that_are_not_made_yet_are_told_of(switched):
    shutil.rmtree(switched / "results/runs/no-training/mrpc")
    with (
        pytest.warns(UserWarning, match="no-training: 2 of the 3 runs of the study are made; missing: .*mrpc.*seed-0"),
        pytest.raises(ValueError, match="5 of 6 tables"),
    ):
        write_tables("no-training", root=switched)
