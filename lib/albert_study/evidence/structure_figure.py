"""The layer drawn, with what each attention replaces in it; and the way from a pretrained encoder to a table."""

import re
import textwrap
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from albert_lsh.attention import names
from albert_study.evidence.looks import STYLES, lighter, new_figure

# What stands in the place of the parts of an attention block, bottom to top; "" where the pretrained part is kept.
PARTS = ("query projection", "key projection", "value projection", "attention core", "output projection")
REPLACED = {
    "softmax": ("", "", "", "", ""),
    "new": ("new", "new", "new", "", "new"),  # an arm: softmax with new projections
    "reformer": ("new", "query,\nlength 1", "new", "hashed\nif > 64", "new"),
    "shared-qk": ("", "query,\nlength 1", "", "all but\nitself", ""),
    "shared-qk-lsh": ("", "query,\nlength 1", "", "hashed\nbuckets", ""),
    "new-shared-qk-lsh": ("new", "query,\nlength 1", "new", "hashed\nbuckets", "new"),  # an arm: all three changes
    "lsh": ("", "", "", "clusters\nthat fit", ""),
    "random": ("", "", "", "random\nclusters", ""),
}


def draw_box(axis: Axes, x: float, y: float, width: float, height: float, text: str, **look: Any) -> None:
    """A box with its lower left corner at (x, y), inches, and text in its middle."""
    look = {"fc": "white", "ec": "#333333", **look}
    axis.add_patch(FancyBboxPatch((x, y), width, height, "round,pad=0,rounding_size=0.04", lw=0.7, **look))
    axis.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=8, linespacing=1.1)


def draw_arrow(axis: Axes, *points: tuple[float, float]) -> None:
    """A line through the points with an arrow's head at its end."""
    axis.plot(*zip(*points[:-1], strict=True), color="#333333", linewidth=0.7)
    arrow = {"arrowstyle": "-|>", "color": "#333333", "linewidth": 0.7, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 6}
    axis.annotate("", xy=points[-1], xytext=points[-2], arrowprops=arrow)


def plot_structure() -> Figure:
    """ALBERT, its shared layer, and which parts of the layer's attention block each attention replaces."""
    figure, axes = new_figure(6.6, 3.6)
    axis = axes[0, 0]
    axis.set(xlim=(0, 6.6), ylim=(0, 4.0))
    axis.axis("off")
    model = {0.3: "word pieces", 1.2: "embeddings", 2.1: "layer,\n12 times", 3.0: "head"}
    for y, text in model.items():
        draw_box(axis, 0.0, y, 0.84, 0.5, text)
    for below, above in pairwise(model):
        draw_arrow(axis, (0.42, below + 0.5), (0.42, above))
    for corner in (0.12, 3.95):  # the layer, enlarged
        axis.plot([0.84, 0.98], [2.1 if corner < 1 else 2.6, corner], color="#999999", linewidth=0.6, linestyle=":")
    layer = dict(zip((0.26, 0.7, 1.14, 1.58, 2.02), PARTS, strict=True))
    layer |= {2.6: "add, LayerNorm", 3.04: "feed-forward", 3.48: "add, LayerNorm"}
    high = 0.36
    for y, text in layer.items():
        draw_box(axis, 1.2, y, 1.1, high, text, fc="#eeeeee" if "core" in text else "white")
    tops = [1.14 + high, *(y + high for y in list(layer)[3:])]
    for start, end in zip([0.04, *tops], [0.26, 1.58, 2.02, 2.6, 3.04, 3.48, 3.97], strict=True):
        draw_arrow(axis, (1.75, start), (1.75, end))
    draw_arrow(axis, (1.75, 0.12), (1.08, 0.12), (1.08, 2.6 + high / 2), (1.2, 2.6 + high / 2))
    draw_arrow(axis, (1.75, 3.0), (1.08, 3.0), (1.08, 3.48 + high / 2), (1.2, 3.48 + high / 2))
    draw_replaced(axis, list(layer)[:5], high)
    return figure


def draw_replaced(axis: Axes, heights: list[float], high: float) -> None:
    """Beside the parts at these heights, a column for each arm: what is kept, and what stands in its place."""
    width = 4.24 / len(REPLACED)
    for column, (name, cells) in enumerate(REPLACED.items()):
        x, colour = 2.36 + column * width, STYLES[name].colour if name in STYLES else "#999999"
        heading: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8}
        axis.text(x + width / 2, 2.62, re.sub("-(?=shared|qk)", "-\n", name), **heading)
        for y, text in zip(heights, cells, strict=True):
            look = {"fc": lighter(colour), "ec": colour} if text else {"ec": "#cccccc"}
            draw_box(axis, x + 0.02, y, width - 0.04, high, text or "kept", **look)
    others = ", ".join(name for name in names() if name not in REPLACED and not name.startswith("softmax"))
    note = textwrap.fill(f"not shown, like lsh in the attention core alone: {others}", 62)
    note = f"every attention keeps the rest of the layer;\n{note}"
    axis.text(4.48, 3.4, note, ha="center", va="center", style="italic", fontsize=8)


def plot_flow() -> Figure:
    """From a pretrained encoder to a table: what is trained, what is only switched, and what is kept of each run."""
    figure, axes = new_figure(6.6, 1.7)
    axis = axes[0, 0]
    axis.set(xlim=(0, 6.6), ylim=(0, 2.3))
    axis.axis("off")
    wide, high, rows = 1.2, 0.5, (1.65, 0.9, 0.15)
    steps = {  # column, row: what happens there
        (0, 1): "pretrained encoder\nfrom the Hub",
        (1, 0): "attention replaced",
        (2, 0): "fine-tuned:\nseeds, one recipe",
        (1, 1): "fine-tuned\nwith softmax",
        (2, 1): "attention switched,\nnothing trained",
        (1, 2): "attention replaced,\nnothing trained",
        (2, 2): "masked words\nguessed",
        (3, 1): "answers to every\nexample kept",
        (4, 1): "differences,\nintervals, report",
    }
    place = {at: (0.02 + at[0] * 1.34, rows[at[1]]) for at in steps}
    for at, text in steps.items():
        draw_box(axis, *place[at], wide, high, text, fc="#eeeeee" if "tuned" in text else "white")
    for row in range(3):
        ends = ((0, 1), (1, row)), ((1, row), (2, row)), ((2, row), (3, 1))
        for start, end in ends:
            x, y = place[start][0] + wide, place[start][1] + high / 2
            draw_arrow(
                axis,
                (x, y),
                (x + 0.07, y),
                (x + 0.07, place[end][1] + high / 2),
                (place[end][0], place[end][1] + high / 2),
            )
    draw_arrow(axis, (place[3, 1][0] + wide, level := rows[1] + high / 2), (place[4, 1][0], level))
    return figure
