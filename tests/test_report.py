"""Figures and report from run records: drawn again only when results change, and made of what there is."""

import json
import shutil
from pathlib import Path

import matplotlib as mpl
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from albert_lsh.files import repository_root
from albert_study.evidence.looks import LOOK, new_figure, save, style_of
from albert_study.evidence.report import build, reaching_half
from albert_study.evidence.study_figures import (
    draw_common_figures,
    draw_figures,
    plot_convergence,
    plot_loss,
    write_figures,
)
from albert_study.evidence.tables import write_tables

# F1 by arm and seed; accuracy is 0.1 less everywhere.
from records import checkout, runs_of, write_run


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return checkout(tmp_path)


def test_figures_change_only_with_their_data(tree):
    write_run(tree, "reformer-10-epochs", 0, {"accuracy": 0.7, "f1": 0.8})
    first = {path: path.read_bytes() for path in write_figures("mini", root=tree)}
    stems = ("structure", "flow", "settings", "mini-scores", "mini-loss-mrpc", "mini-convergence-mrpc")
    assert {path.name for path in first} == {f"{stem}.{kind}" for stem in stems for kind in ("svg", "pdf", "png")}
    history = tree / "results/runs/mini/mrpc/model/lsh/seed-0/history.csv"
    history.write_text(history.read_text().replace("30,3.0,,0.5", "30,3.0,,0.9"))
    changed = {path.name for path in write_figures("mini", root=tree) if path.read_bytes() != first[path]}
    assert changed == {f"mini-loss-mrpc.{kind}" for kind in ("svg", "pdf", "png")}


class Nudging(ConstrainedLayoutEngine):
    """Ends as the usual layout does, but in the tenth digit, as another process may."""

    def execute(self, fig: Figure) -> None:
        super().execute(fig)
        for axis in fig.axes:
            axis.set_position([number + 1e-10 for number in axis.get_position(original=True).bounds])


def test_a_figure_does_not_depend_on_the_last_digits_of_its_layout(tmp_path):
    made = []
    for name, engine in (("plain", "constrained"), ("nudged", Nudging())):
        figure, axes = new_figure(5, 3, ncols=2)
        figure.set_layout_engine(engine)
        for axis in axes.flat:
            axis.plot([1, 2], [3, 1])
        with mpl.rc_context(LOOK):
            made.append([path.read_bytes() for path in save(figure, tmp_path / name)])
    assert made[0] == made[1]


def test_pretraining_that_went_on_from_other_weights_is_not_drawn_beside_what_began_anew(tree):
    for run in ("nano-lsh", "nano-then/lsh"):
        shutil.copytree(repository_root() / "results/pretraining" / run, tree / "results/pretraining" / run)
    axis = draw_common_figures(tree)["pretraining"].axes[0]
    assert axis.get_legend_handles_labels()[1] == ["nano-lsh", "counting, or a coin"]


@pytest.mark.parametrize(("task", "unit"), [("squad", "nats"), ("mrpc", "nats"), ("stsb", "squared error")])
def test_a_loss_has_the_unit_of_its_task(tmp_path, task, unit):
    write_run(tmp_path, "softmax", 0, {"f1": 0.5}, task=task, study="units")
    assert plot_loss(runs_of(tmp_path, "units")).axes[0].get_ylabel() == f"loss ({unit})"


def test_an_arm_trained_longer_is_drawn_as_the_same_arm_trained_shorter(tmp_path):
    """`new` has softmax's attention, and a colour of its own."""
    for arm in ("softmax-10-epochs", "new-10-epochs"):
        write_run(tmp_path, arm, 0, {"f1": 0.5}, study="longer")
    figure = plot_convergence(runs_of(tmp_path, "longer").assign(attention="softmax"))
    colours = {str(line.get_label()): line.get_color() for line in figure.axes[1].lines}
    assert colours == {"softmax-10-epochs": style_of("softmax").colour, "new-10-epochs": style_of("new").colour}


def test_scores_by_the_number_of_examples_are_a_line_an_attention_and_no_loss_of_theirs_is_drawn(tmp_path):
    for arm, score in {"softmax-8000": 0.7, "softmax-20000": 0.8, "new-8000": 0.5, "new-20000": 0.6}.items():
        record = write_run(tmp_path, arm, 0, {"accuracy": score}, task="sst2", study="sized", headline="accuracy")
        said = json.loads((record / "result.json").read_text())
        said["examples"]["train"] = int(arm.split("-")[1])
        (record / "result.json").write_text(json.dumps(said))
    write_run(tmp_path, "softmax-rate-of-2020", 0, {"accuracy": 0.9}, task="sst2", study="sized", headline="accuracy")
    (tables := tmp_path / "results/tables").mkdir()
    pd.DataFrame([{"from": "softmax-8000", "to": "new-8000"}]).to_csv(tables / "sized-differences.csv")
    figures = draw_figures("sized", tmp_path)
    of_the_study = {name for name in figures if name.startswith("sized")}
    assert of_the_study == {"sized-scores", "sized-loss-sst2", "sized-examples-sst2"}
    (axis,) = figures["sized-examples-sst2"].axes
    handles, labels = axis.get_legend_handles_labels()
    lines = {
        label: bars.lines[0].get_xydata().tolist()
        for bars, label in zip(handles, labels, strict=True)
        if hasattr(bars, "lines")
    }
    assert [label.get_text() for label in figures["sized-scores"].axes[0].get_yticklabels()] == ["softmax-rate-of-2020"]
    assert lines["new projections"] == [[8000, 0.5], [20000, 0.6]]
    assert lines["softmax"] == [[8000, 0.7], [20000, 0.8]]
    assert figures["sized-loss-sst2"].axes[1].get_legend_handles_labels()[1] == ["softmax-rate-of-2020"]


def test_the_report_compiles_with_one_study_and_with_more(tree):
    pytest.importorskip("typst")
    write_tables("mini", root=tree)
    write_figures("mini", root=tree)
    first = build(tree)[0].read_bytes()
    assert first.startswith(b"%PDF")
    assert build(tree)[0].read_bytes() == first
    for seed in (0, 1):
        write_run(tree, "plain-lsh", seed, {"exact": 60.0, "f1": 70.0 + seed}, task="squad", study="minilm")
        write_run(tree, "random", seed, {"exact": 50.0, "f1": 60.0}, task="squad", study="minilm")
    write_run(tree, "softmax", 0, {"pearson": -0.1}, task="stsb", study="alone", headline="pearson")
    path = tree / "results/runs/alone/stsb/model/softmax/seed-0/result.json"
    path.write_text(path.read_text().replace('"train_seconds": 10.0', '"train_seconds": 7200.0'))
    write_tables("minilm", root=tree)
    write_tables("alone", root=tree)
    assert build(tree)[0].read_bytes() != first
    numbers = json.loads((tree / "report" / "numbers.json").read_text())
    assert [study["name"] for study in numbers["studies"]] == ["minilm", "alone", "mini"]
    assert numbers["studies"][1]["seeds"] == "1 seed"
    assert numbers["trained"] == {"runs": 11, "hours": "2"}
    shown = pd.read_csv(tree / "report" / "tables" / "alone-scores.csv", index_col=0)
    assert shown.loc["softmax", "stsb (pearson)"] == "−0.100 (1)"


def test_runs_that_reach_half_of_softmaxs_correlation_are_counted():
    scores = {"softmax": [0.9, 0.7], "plain-lsh": [0.1, 0.41, 0.39], "new": [0.0]}
    runs = pd.DataFrame([(arm, "stsb", "pearson", s) for arm, of in scores.items() for s in of])
    runs = pd.concat([runs, pd.DataFrame([("softmax", "mrpc", "f1", 0.8)])]).set_axis(
        ["arm", "task", "headline", "score"], axis=1
    )
    assert reaching_half(runs) == {"stsb": {"softmax": "2 of 2", "plain-lsh": "1 of 3", "new": "0 of 1"}}


def test_a_table_whose_results_are_gone_leaves_the_report(tree):
    write_tables("mini", root=tree)
    build(tree)
    assert (tree / "report" / "tables" / "mini-scores.csv").exists()
    (tree / "results" / "tables" / "mini-scores.csv").unlink()
    build(tree)
    assert not (tree / "report" / "tables" / "mini-scores.csv").exists()


@pytest.mark.parametrize("gone", ["albert", "minilm"])
def test_report_poster_and_summary_do_without_a_study_that_was_not_run(tmp_path, gone):
    for folder in ("results", "figures"):
        unread = shutil.ignore_patterns("*.parquet", "*.ipynb", "*.pdf", "model", "checkpoints")
        shutil.copytree(repository_root() / folder, tmp_path / folder, ignore=unread)
    for path in tmp_path.glob(f"results/tables/{gone}-*"):
        path.unlink()
    assert [path.read_bytes()[:4] for path in build(tmp_path)] == [b"%PDF"] * 3
