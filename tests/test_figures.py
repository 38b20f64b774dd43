"""Figures from run records: drawn again only when results change, and made of what there is."""

import re
import resource
import shutil

import matplotlib as mpl
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from albert_lsh.files import repository_root
from albert_lsh.record import write_predictions
from albert_study import figures
from albert_study.articles import plot_articles
from albert_study.compare import differences, headlines, runs_of, write_tables
from albert_study.figures import draw_figures, plot_differences, plot_training
from albert_study.names import look_of
from albert_study.records import load
from albert_study.report import build
from albert_study.shares import has_shares, plot_shares
from albert_study.show import LOOK, new_figure, save
from records import write_run

ROOT = repository_root()


def test_figures_change_only_with_their_data(tree):
    write_run(tree, "reformer-10-epochs", 0, {"accuracy": 0.7, "f1": 0.8})
    shorter = ("bert-small-softmax", "bert-small-lsh", "bert-small-yoso")  # of a size that more runs have
    for run in ("nano-key-clusters", "nano-softmax", "nano-then/random", "rotary-softmax", *shorter):
        shutil.copytree(ROOT / "results/pretraining" / run, tree / "results/pretraining" / run)
    first = {path: path.read_bytes() for path in figures.write_figures("mini", root=tree)}
    stems = ("pretraining", "mini-loss-mrpc", "mini-convergence-mrpc")
    assert {path.name for path in first} == {f"{stem}.{kind}" for stem in stems for kind in ("svg", "pdf", "png")}
    history = tree / "results/runs/mini/mrpc/model/key-clusters/seed-0/history.csv"
    history.write_text(history.read_text().replace("30,3.0,,0.5", "30,3.0,,0.9"))
    changed = {path.name for path in figures.write_figures("mini", root=tree) if path.read_bytes() != first[path]}
    assert changed == {f"mini-loss-mrpc.{kind}" for kind in ("svg", "pdf", "png")}
    # what went on from other weights is not drawn beside what began anew
    drawn = (tree / "figures/pretraining.svg").read_text()
    for name in ("nano-key-clusters", "nano-softmax", "counting, or a coin"):
        assert f"<!-- {name} -->" in drawn
    for name in ("nano-then", "bert-small", "rotary"):
        assert name not in drawn


def test_an_attention_at_several_shares_is_drawn_where_it_saw_them():
    arms = ["softmax", "lsh-half", "lsh-half", "lsh-quarter", "lsh-mean-half", "lsh-mean-three-quarters"]
    runs = pd.DataFrame({"arm": arms, "value": [0.9, 0.6, 0.4, 0.3, 0.5, 0.7]})
    runs = runs.assign(pairs=[1.0, 0.4, 0.3, 0.2, 0.41, 0.6], cost=[1.0, 0.6, 0.6, 0.3, 1.4, 2.1])
    runs = runs.assign(share=[None, 0.5, 0.5, 0.25, 0.5, 0.75], task="stsb", measure="pearson")
    assert has_shares(arms)
    assert not has_shares(["softmax", "lsh-half", "key-clusters-quarter"])
    of_one_share = runs.assign(task="mrpc", measure="f1")[:2]
    seen, cost = plot_shares(pd.concat([runs, of_one_share])).axes  # which has no panel
    for axis, column in ((seen, "pairs"), (cost, "cost")):
        points = {(x, y) for line in axis.lines if line.get_linestyle() == "None" for x, y in line.get_xydata()}
        assert points == set(zip(runs[column][1:], runs["value"][1:], strict=True))
        assert [label for label in axis.get_legend_handles_labels()[1]] == ["softmax", "LSH", "LSH, mean key"]


class Nudging(ConstrainedLayoutEngine):
    """Ends as the usual layout does, but in the tenth digit, as another process may."""

    def execute(self, fig: Figure) -> None:
        super().execute(fig)
        for axis in fig.axes:
            axis.set_position([number + 1e-10 for number in axis.get_position(original=True).bounds])


def test_answers_in_articles_are_drawn_against_the_time_of_their_attention_without_means_over_seeds():
    arms = ["windows-384", "softmax", "softmax-high-rate", "softmax"]
    scores = pd.DataFrame({"arm": arms, "seeds": ["70", "70", "70", "70 71"], "f1": [60.0, 10, 30, 90]})
    scores = scores.assign(**{f"f1_eighth_{n}": scores["f1"] + n for n in range(1, 9)})
    times = pd.DataFrame({"arm": ["windows-384", "softmax"], "seconds": [24, 48], "questions": 48})
    left, right = plot_articles(scores, times).axes
    assert [tuple(line.get_xydata()[0]) for line in left.lines] == [(0.5, 60), (1, 10), (1, 30)]
    assert [line.get_ydata()[-1] for line in right.lines] == [68, 18, 38]


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


@pytest.mark.parametrize("room", [1024, 3072])
def test_a_disk_that_is_full_is_named(tmp_path, room):
    """Matplotlib, closing a PDF that it could not write, complains of an attribute."""
    figure, axes = new_figure(5, 3)
    axes.flat[0].scatter([0, 1], [0, 1])
    (tmp_path / "figure.partial.svg").symlink_to("/dev/null")  # where there is room
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            save(figure, tmp_path / "figure")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_an_arm_trained_longer_is_drawn_as_the_same_arm_trained_shorter(tmp_path):
    """`new` has softmax's attention, and a colour of its own."""
    for arm in ("softmax-10-epochs", "new-10-epochs"):
        write_run(tmp_path, arm, 0, {"f1": 0.5}, study="longer")
    runs = runs_of(load(tmp_path, "longer"), tmp_path).query("is_headline")
    figure = plot_training(runs.assign(attention="softmax"), tmp_path, "epoch")
    colours = {str(line.get_label()): line.get_color() for line in figure.axes[1].lines}
    names = {"softmax, 10 epochs": "softmax", "new projections, 10 epochs": "new"}
    assert colours == {name: look_of(arm)["color"] for name, arm in names.items()}
    assert figure.axes[0].get_ylabel() == "loss (nats)"


@pytest.mark.parametrize("study", ["albert", "more-training", "no-training"])
def test_axes_are_linear_and_legends_in_words(study):
    for name, figure in draw_figures(study, ROOT).items():
        scales = {scale for axis in figure.axes for scale in (axis.get_xscale(), axis.get_yscale())}
        assert scales == {"linear"}, name
        assert not [text for legend in figure.legends for text in legend.texts if "-" in text.get_text()], name


def test_figures_have_at_most_six_curves():
    for path in (ROOT / "figures").glob("*.svg"):
        legend = path.read_text().partition('<g id="legend_1">')[2]
        arms = set(re.findall(r"<!-- (.*?) -->", legend)) - {"majority class"}
        assert len(arms) <= 6, path.name


def test_differences_are_drawn_a_dot_a_run_without_a_mean_of_runs_that_are_far_apart(tree):
    write_run(tree, "key-clusters", 1, {"accuracy": 0.5, "f1": 0.6})
    write_run(tree, "mine", 0, {"accuracy": 0.8, "f1": 0.9})
    rows = load(tree, "mini")
    lines = differences(rows, tree).assign(clear=[True, False, False])
    lines.loc[2, ["difference", "constant_to"]] = None, 1
    (axis,) = plot_differences(headlines(rows, tree), lines).axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["new and tied", "key clusters", "mine"]
    points = [line for line in axis.lines if line.get_marker() == "o" and len(line.get_xdata())]
    assert [line.get_xdata().tolist() for line in points[:2]] == [
        pytest.approx([-0.1, -0.06]),
        pytest.approx([-0.03, -0.28]),
    ]
    assert [line.get_markerfacecolor() == "white" for line in points[:2]] == [False, True]
    ends = [segments.get_segments() for segments in axis.collections if segments.get_segments()]
    drawn = [sum(len(one) > 0 and not pd.isna(one).any() for one in of_arm) for of_arm in ends]
    assert drawn == [1, 0, 0]
    assert [text.get_text() for text in axis.texts] == ["1 constant "]
    assert axis.get_xlim() == pytest.approx((-0.28 - 0.024, 0.02 + 0.024))  # as far as runs go, not as intervals do
    assert "\n0.890; seeds: 1 to 2" in axis.get_xlabel()
    assert [line.get_marker() for line in axis.lines if line.get_marker() in ("<", ">")] == ["<", ">"]
    of_three = lines.assign(seeds=3)  # whose intervals are drawn whole
    (axis,) = plot_differences(headlines(rows, tree), of_three).axes
    low, high = axis.get_xlim()
    drawn = of_three[of_three["has_mean"]]
    assert low < drawn["low"].min()
    assert drawn["high"].max() < high
    assert not [line for line in axis.lines if line.get_marker() in ("<", ">")]


def test_the_ladder_is_a_dot_a_run_hollow_where_the_run_is_constant(tmp_path):
    """Of at most five tasks, those with most arms; what is no rung is not drawn, other rates in their rung's row."""
    arms = ("2020-block", "with-residual", "softmax", "no-residual", "2020-block-10-epochs", "2020-block-low-rate")
    for task in ("sst2", "mrpc", "cola", "rte", "qnli"):
        for arm in arms if task != "cola" else arms[:1]:
            write_run(tmp_path, arm, 0, {"accuracy": 0.6}, task=task, study="ladder", headline="accuracy")
    folder = write_run(tmp_path, "2020-block", 1, {"accuracy": 0.7}, task="sst2", study="ladder", headline="accuracy")
    same = pd.DataFrame(
        {"id": ["a", "b"], "label": [0, 1], "answer": [1, 1], "logit_0": [0.1, 0.2], "logit_1": [0.3, 0.4]}
    )
    write_predictions(folder / "predictions.parquet", same)
    figure = draw_figures("ladder", tmp_path)["ladder"]
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["MRPC", "SST-2", "qnli", "rte"]
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names == ["0 block of 2020", "1 + residual", "4 keys of their own", "softmax, no residual"]
    points = [line for line in figure.axes[1].lines if line.get_marker() == "o" and len(line.get_xdata())]
    faces = [(line.get_xdata().tolist(), line.get_markerfacecolor() == "white") for line in points]
    assert faces[:3] == [([0.6] * 3, False), ([0.7], True), ([0.6], False)]


def test_runs_of_earlier_studies_that_are_a_rung_are_crosses_in_its_row(tmp_path):
    """Of the ladder's own tasks alone, and each in the row of the rung that it is."""
    for study, arm, task in (("ladder", "2020-block", "sst2"), ("ladder", "softmax", "sst2"),
                             ("transplants", "reformer", "sst2"), ("transplants", "new", "sst2"),
                             ("albert", "softmax", "kor-sts")):  # fmt: skip
        write_run(tmp_path, arm, 0, {"accuracy": 0.6}, task=task, study=study, headline="accuracy")
    (axis,) = draw_figures("ladder", tmp_path)["ladder"].axes
    names = [label.get_text() for label in axis.get_yticklabels()]
    assert names == ["0 block of 2020", "2 + mask", "4 keys of their own"]
    crosses = [line for line in axis.lines if line.get_marker() == "x" and len(line.get_xdata())]
    assert [line.get_ydata().tolist() for line in crosses] == [[1]]


def test_texts_as_they_are_and_shuffled_are_two_points_a_run():
    figure = draw_figures("word-order", ROOT)["word-order-shuffled"]
    titles = "MNLI, 1 run; SST-2, 3 runs; CoLA, 3 runs; STS-B, 3 runs"
    assert "; ".join(axis.get_title(loc="left") for axis in figure.axes) == titles
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()][:2] == ["softmax", "new projections"]
    plain, mixed = (line for line in figure.axes[1].lines[:3] if len(line.get_xdata()) == 3)
    assert (plain.get_xdata() > mixed.get_xdata()).all()


def test_names_that_no_study_can_have_are_drawn_and_compiled(tree):
    write_run(tree, "$\\frac$", 0, {"accuracy": 0.7, "f1": 0.8})
    write_tables("mini", root=tree)
    drawn = {path.name: path for path in figures.write_figures("mini", root=tree)}
    assert "<!-- $\\frac$ -->" in drawn["mini-loss-mrpc.svg"].read_text()
    pytest.importorskip("typst")
    assert build(tree)[0].read_bytes().startswith(b"%PDF")
