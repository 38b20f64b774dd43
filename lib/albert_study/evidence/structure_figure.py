"""The layer drawn, with what each attention replaces in it."""

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
    "reformer": ("new\nweights", "queries,\nunit length", "new\nweights", "hashed\nbuckets", "new\nweights"),
    "shared-qk": ("", "queries,\nunit length", "", "all but\nitself", ""),
    "shared-qk-lsh": ("", "queries,\nunit length", "", "hashed\nbuckets", ""),
    "lsh": ("", "", "", "hashed\nclusters", ""),
    "window": ("", "", "", "nearest\nkeys", ""),
    "random": ("", "", "", "random\nclusters", ""),
}


def draw_box(
    axis: Axes, x: float, y: float, width: float, height: float, text: str, fontsize: float = 6.5, **look: Any
) -> None:
    """A box with its lower left corner at (x, y), inches, and text in its middle."""
    look = {"fc": "white", "ec": "#333333", **look}
    axis.add_patch(FancyBboxPatch((x, y), width, height, "round,pad=0,rounding_size=0.04", lw=0.7, **look))
    axis.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=fontsize, linespacing=1.1)


def draw_arrow(axis: Axes, *points: tuple[float, float]) -> None:
    """A line through the points with an arrow's head at its end."""
    axis.plot(*zip(*points[:-1], strict=True), color="#333333", linewidth=0.7)
    arrow = {"arrowstyle": "-|>", "color": "#333333", "linewidth": 0.7, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 6}
    axis.annotate("", xy=points[-1], xytext=points[-2], arrowprops=arrow)


def plot_structure() -> Figure:
    """ALBERT, its shared layer, and which parts of the layer's attention block each attention replaces."""
    figure, axes = new_figure(6.8, 3.05)
    axis = axes[0, 0]
    axis.set(xlim=(0, 6.8), ylim=(0, 3.05))
    axis.axis("off")
    model = {0.3: "word pieces", 0.95: "embeddings", 1.6: "layer, 12 times\n(shared weights)"}
    model |= {2.35: "head: classes\nor span"}
    for y, text in model.items():
        draw_box(axis, 0.05, y, 0.95, 0.42, text)
    for below, above in pairwise(model):
        draw_arrow(axis, (0.52, below + 0.42), (0.52, above))
    for corner in (0.12, 2.98):  # the layer, enlarged
        axis.plot([1.0, 1.22], [1.6 if corner < 1 else 2.02, corner], color="#999999", linewidth=0.6, linestyle=":")
    layer = dict(zip((0.22, 0.52, 0.82, 1.16, 1.52), PARTS, strict=True))
    layer |= {1.92: "add, LayerNorm", 2.26: "feed-forward", 2.6: "add, LayerNorm"}
    for y, text in layer.items():
        draw_box(axis, 1.5, y, 1.1, 0.26, text, fc="#eeeeee" if "core" in text else "white")
    for start, end in ((1.08, 1.16), (1.42, 1.52), (1.78, 1.92), (2.18, 2.26), (2.52, 2.6), (2.86, 3.02), (0.04, 0.22)):
        draw_arrow(axis, (2.05, start), (2.05, end))
    draw_arrow(axis, (2.05, 0.1), (1.36, 0.1), (1.36, 2.05), (1.5, 2.05))
    draw_arrow(axis, (2.05, 2.22), (1.36, 2.22), (1.36, 2.73), (1.5, 2.73))
    draw_replaced(axis, list(layer)[:5])
    return figure


def draw_replaced(axis: Axes, heights: list[float]) -> None:
    """Beside the parts at these heights, a column for each attention: what is kept, and what stands in its place."""
    width = 0.585
    for column, (name, cells) in enumerate(REPLACED.items()):
        x, colour = 2.7 + column * width, STYLES[name].colour
        heading: dict[str, Any] = {"ha": "center", "va": "center", "weight": "bold", "fontsize": 6.2}
        axis.text(x + width / 2, 1.93, name.replace("-lsh", "\n-lsh"), **heading)
        for y, text in zip(heights, cells, strict=True):
            look = {"fc": lighter(colour), "ec": colour} if text else {"ec": "#cccccc"}
            draw_box(axis, x + 0.02, y, width - 0.04, 0.26, text or "kept", fontsize=5.5, **look)
    others = ", ".join(name for name in names() if name not in REPLACED and not name.startswith("softmax"))
    note = textwrap.fill(f"not shown, like lsh in the attention core alone: {others}", 70)
    note = f"every attention keeps the rest of the layer\n{note}"
    axis.text(2.7 + 3.5 * width, 2.42, note, ha="center", va="center", style="italic", fontsize=6)
