"""How far apart texts, and the tokens of a text, stay through the passes of an encoder: rank collapse, measured.

Attention without a residual connection draws all tokens of a text together, doubly exponentially with depth (Dong,
Cordonnier and Loukas 2021, "Attention is not all you need", arXiv 2103.03404). The block of the original study has
none (docs/original.md). Here an encoder has that block and others, nothing is trained, and the spread of its states is
measured after every pass: ALBERT's shared layer each time, BERT's layers one by one.

    spread(x) = sqrt(mean_i |x_i - mean_j x_j|²) / sqrt(mean_i |x_i|²)

the root mean square distance from the mean, as a share of the root mean square size: 0 where all are one vector, 1
where their mean is zero.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import field_validator
from torch import Tensor, nn
from transformers import BatchEncoding, PreTrainedModel

from albert_lsh.data import load_data
from albert_lsh.encoders import attention_modules
from albert_lsh.files import OneLineError, write_atomically
from albert_lsh.machine import choose_threads
from albert_lsh.model.load import load_model, load_tokenizer
from albert_lsh.model.projections import draw_projections, drop_residual
from albert_lsh.record import provenance
from albert_lsh.run import Count, NameOrPath, Seed
from albert_lsh.sources import find_task
from albert_study.probe.variants import TableSettings
from albert_study.show import add_legend, new_figure

AT_ONCE = 4  # texts of a batch: hashing is fastest so
LEAST = 1e-6  # float32's rounding; a figure's axis begins there
CLS, MEAN, TOKENS = "[CLS] between texts", "mean token between texts", "tokens within a text"
AS_TRAINED = "as trained"


class Block(NamedTuple):
    """An encoder's attention block; projections are query, key, value and output."""

    attention: str = "softmax"
    new_projections: bool = False  # drawn as the model initialises its own; else pretrained
    residual: bool = True  # the residual connection around attention
    layer_norm: bool = True  # the LayerNorm after it
    mask: bool = True  # padding is masked
    hashed: bool = False  # in buckets of 32, 16 rounds; else all pairs

    def settings(self, max_length: int) -> dict[str, Any]:
        """Of the attention."""
        hashing = {"bucket_size": 32, "n_hashes": 16}
        if self.attention == "reformer":
            full = {} if self.hashed else {"full_attn_thres": max_length}
            return hashing | full | {"residual": self.residual, "mask_padding": self.mask}
        return hashing | {"causal": True} if self.attention == "shared-qk-lsh" else {}


OF_2020 = Block("reformer", new_projections=True, residual=False, layer_norm=False, mask=False, hashed=True)
BLOCKS = {
    "as pretrained": Block(),
    "causal, keys are queries": Block("shared-qk-lsh", hashed=True),
    "no residual": Block(residual=False),
    "no residual, no LayerNorm": Block(residual=False, layer_norm=False),
    "new projections": Block("reformer", new_projections=True),
    "new projections, no residual": Block(new_projections=True, residual=False),
    "2020 block": OF_2020,
    "2020 block, all pairs": OF_2020._replace(hashed=False),
    "2020 block, all pairs, mask": OF_2020._replace(hashed=False, mask=True),
}


class Collapse(TableSettings):
    """The parameters of collapse.ipynb."""

    notebook: ClassVar[str] = "collapse.ipynb"
    usual: ClassVar[str] = "results/runs/notebook/collapse-{0.named}-{0.task}-{0.max_length}.csv"
    model: NameOrPath = "kykim/albert-kor-base"  # a folder: a trained model, measured as it is
    task: str = "nsmc"
    texts: Count = 64
    max_length: Count = 64
    draws: Count = 10
    seed: Seed = 0  # of the first draw, and of the hashes

    @field_validator("task")
    @classmethod
    def known(cls, task: str) -> str:
        return find_task(task).name

    @property
    def blocks(self) -> dict[str, Block]:
        return {AS_TRAINED: Block()} if os.path.isdir(self.model) else BLOCKS


# ---- spread ---------------------------------------------------------------------------------------------------------
def spread(vectors: Tensor) -> float:
    """The spread of vectors (n, hidden), computed in float64: from 0 to 1; 0 if all are zero."""
    vectors = vectors.double()
    size = vectors.square().sum()
    return ((vectors - vectors.mean(0)).square().sum() / size).sqrt().item() if size > 0 else 0.0


def spreads(states: Tensor, mask: Tensor) -> dict[str, float]:
    """What is measured of the states after a pass.

    Args:
        states: (texts, length, hidden); the first token is [CLS].
        mask: (texts, length) bool, True where there is a token. Padding is left out.
    Returns:
        The spread of [CLS] and of the mean token over texts; of the tokens of a text, the mean over texts.
    """
    tokens = [text[real] for text, real in zip(states, mask, strict=True)]
    means = torch.stack([of_text.double().mean(0) for of_text in tokens])
    return {CLS: spread(states[:, 0]), MEAN: spread(means), TOKENS: sum(map(spread, tokens)) / len(tokens)}


@contextmanager
def recorded_states(model: PreTrainedModel) -> Iterator[list[Tensor]]:
    """The output of every layer of a model, (batch, length, hidden), in the order of its passes."""
    states: list[Tensor] = []

    def record(layer: nn.Module, inputs: Any, output: Any) -> None:
        states.append(output if isinstance(output, Tensor) else output[0])

    layers = [module for module in model.modules() if isinstance(getattr(module, "attention", None), nn.Module)]
    hooks = [layer.register_forward_hook(record) for layer in layers]
    try:
        yield states
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def spreads_by_pass(model: PreTrainedModel, batch: BatchEncoding) -> list[dict[str, float]]:
    """`spreads` after each pass of a model. One that pads its inputs itself has longer states; they are cut."""
    mask, parts = batch["attention_mask"].bool(), []
    for first in range(0, len(mask), AT_ONCE):
        with recorded_states(model) as states:
            model(**{name: rows[first : first + AT_ONCE] for name, rows in batch.items()})
        parts.append([of_pass[:, : mask.shape[1]] for of_pass in states])
    return [spreads(torch.cat(of_pass), mask) for of_pass in zip(*parts, strict=True)]


# ---- blocks ---------------------------------------------------------------------------------------------------------
def build(settings: Collapse, block: Block) -> PreTrainedModel:
    """The model with a block, its new projections still to be drawn; a trained model has the block that it has."""
    if AS_TRAINED in settings.blocks:
        return load_model(settings.model, head="base", complete=True)
    torch.manual_seed(settings.seed)  # "mini" has no weights
    is_reformer = block.attention == "reformer"
    chosen: Any = {"attention": block.attention, "settings": block.settings(settings.max_length)}
    model = load_model(settings.model, head="base", complete=not is_reformer, seed=settings.seed, **chosen)
    if not block.residual and not is_reformer:
        drop_residual(model)
        if not block.layer_norm:
            drop_layer_norm(model)
    return model


def drop_layer_norm(model: PreTrainedModel) -> None:
    """Remove the LayerNorm after every attention, in place; the feed-forward part's stays."""
    module: Any
    for module in list(model.modules()):
        if hasattr(module, "query") and hasattr(module, "LayerNorm"):  # ALBERT's block
            module.LayerNorm = nn.Identity()
        elif hasattr(getattr(module, "self", None), "query"):  # BERT's
            module.output.LayerNorm = nn.Identity()


def draw(model: PreTrainedModel, block: Block, seed: int) -> None:
    """Draw the projections of a block anew, in place; `draw_projections` does not for those of `reformer`."""
    torch.manual_seed(seed)
    if block.attention != "reformer":
        draw_projections(model)
        return
    for linear in (m for module in attention_modules(model) for m in module.modules() if isinstance(m, nn.Linear)):
        nn.init.normal_(linear.weight, std=model.config.initializer_range)
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)


def read_texts(settings: Collapse) -> tuple[str, list[str]]:
    """The split that a task is evaluated on, and its first texts, each once; of a pair the first.

    Raises:
        OneLineError: there are fewer.
    """
    _, (split, rows), *_ = load_data(settings.task).items()
    texts = [text for text in dict.fromkeys(rows[find_task(settings.task).columns[0]][:]) if text]
    if len(texts) < settings.texts:
        raise OneLineError(f"texts={settings.texts}: {settings.task}, {split} has only {len(texts)}")
    return split, texts[: settings.texts]


def measure_collapse(settings: Collapse) -> pd.DataFrame:
    """The spread after every pass of each block, of each draw of its projections; written to `output`.

    Returns:
        block, draw (its seed; none without new projections), pass (from 1), states (CLS, MEAN or TOKENS), spread; and
        what was read, and where it was measured.
    """
    choose_threads("cpu")
    split, texts = read_texts(settings)
    about = {"model": settings.recorded()["model"], "task": settings.task, "split": split}
    about |= {"texts": settings.texts, "length": settings.max_length, "seed": settings.seed, **provenance("cpu")}
    fixed: Any = {"padding": "max_length", "max_length": settings.max_length, "truncation": True}
    batch, rows = load_tokenizer(settings.model)(texts, **fixed, return_tensors="pt"), []
    with torch.random.fork_rng(devices=[]):
        for number, (name, block) in enumerate(settings.blocks.items(), 1):
            print(f"{number} of {len(settings.blocks)}: {name}", flush=True)
            model = build(settings, block)
            seeds = range(settings.seed, settings.seed + settings.draws) if block.new_projections else [None]
            for seed in seeds:
                if seed is not None:
                    draw(model, block, seed)
                for depth, measured in enumerate(spreads_by_pass(model, batch), 1):
                    same = {"block": name, "draw": seed, "pass": depth}
                    rows += [same | {"states": states, "spread": value} for states, value in measured.items()]
    table = pd.DataFrame(rows).astype({"draw": "Int64"}).assign(**about)
    write_atomically(Path(str(settings.output)), table.to_csv(index=False, float_format="%.5g"))
    return table


# ---- figure ---------------------------------------------------------------------------------------------------------
WITH, WITHOUT = "#000000", "#d55e00"  # the residual connection
DRAWN: dict[str, Any] = {
    AS_TRAINED: {"color": WITH, "linestyle": "-"},
    "as pretrained": {"color": WITH, "linestyle": "-"},
    "new projections": {"color": WITH, "linestyle": (0, (4, 1.5))},
    "no residual": {"color": WITHOUT, "linestyle": "-"},
    "new projections, no residual": {"color": WITHOUT, "linestyle": (0, (4, 1.5))},
    "2020 block": {"color": WITHOUT, "linestyle": (0, (1, 1.2))},
}


def plot_collapse(table: pd.DataFrame) -> Figure:
    """The spread of [CLS] between texts, and of tokens within a text, by pass; a column of panels for each model.

    A line a draw. Values below LEAST are drawn there.
    """
    models = list(dict.fromkeys(table["model"]))
    grid: Any = {"nrows": 2, "ncols": len(models), "sharey": True, "sharex": "col"}
    figure, axes = new_figure(max(4.6, 2.2 + 1.45 * len(models)), 4.3, **grid)
    looks = {name: look for name, look in DRAWN.items() if name in set(table["block"])}
    for (model, states), lines in table.groupby(["model", "states"], sort=False):
        if states == MEAN:
            continue
        axis = axes[int(states == TOKENS), models.index(model)]
        for name, look in looks.items():
            of_block = lines[lines["block"] == name]
            draws = of_block.groupby(of_block["draw"].fillna(0))  # pandas 2.2 cannot count a group without a name
            for number, (_, line) in enumerate(draws):
                label = "" if number else name
                width = 0.7 if len(draws) > 1 else 1.6
                axis.plot(line["pass"], line["spread"].clip(lower=LEAST), label=label, linewidth=width, **look)
        axis.set(yscale="log", ylim=(LEAST * 0.8, 1.5), xticks=[n for n in range(1, 99, 2) if n <= lines["pass"].max()])
    for column, model in enumerate(models):
        axes[0, column].set_title(str(model).split("/")[-1])
        axes[1, column].set_xlabel("pass")
    axes[0, 0].set_ylabel(f"spread of\n{CLS}")
    axes[1, 0].set_ylabel(f"spread of\n{TOKENS}")
    add_legend(figure, axes[0, 0], 3)
    return figure
