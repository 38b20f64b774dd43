"""What a pretrained model loses on masked words when its attention is replaced: the table and the figure.

Both are of results/runs/<study>/<length>.csv, which the studies `masked-words` and `lsh-choice` make by
`probe.masked_words`: what is reported, and on other paragraphs what was chosen by.
"""

import json
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from albert_study.evidence.formats import Named, Table, commits, form
from albert_study.evidence.looks import add_legend, hollow, new_figure, plain


def load_masked_words(root: Path, study: str = "masked-words") -> pd.DataFrame:
    """All lengths, a row a length, variant and share; empty if nothing was measured."""
    found = [path for path in (root / "results/runs" / study).glob("*.csv") if path.stem.isdigit()]
    rows = [pd.read_csv(path) for path in sorted(found, key=lambda path: int(path.stem))]
    return pd.concat(rows, ignore_index=True) if rows else pd.DataFrame()


def masked_words_tables(root: Path) -> Named:
    """A table a study and share: by variant and length how the loss of a masked word changes, and the full cost.

    And one of the passes, if `lsh` was measured in single ones.
    """
    for study in ("masked-words", "lsh-choice"):
        if not (rows := load_masked_words(root, study)).empty:
            yield from tables_by_share(study, rows)
    if (path := root / "results/runs/masked-words/depths.csv").exists():
        yield "masked-words-depths", table_of_passes(pd.read_csv(path))


def with_error(row: Any) -> str:
    """How far a loss is from softmax's, ± two standard errors."""
    return f"{form(row['difference'], '+2')} ± {form(2 * row['standard_error'], '2')}"


def tables_by_share(study: str, rows: pd.DataFrame) -> Named:
    softmax = rows.groupby("length")["softmax_loss"].first()
    per = ", ".join(f"{loss:.2f} at {length} tokens" for length, loss in softmax.items())
    for share in sorted(rows["share_asked"].dropna().unique(), reverse=True):
        some = rows[rows["share_asked"].isna() | (rows["share_asked"] == share)]
        cells: dict[str, dict[str, str]] = {}
        for row in some.to_dict("records"):
            values = {"tokens": with_error(row), "either way": form(row["change"], "2"), "cost": form(row["cost"], "%")}
            for name, text in values.items():
                cells.setdefault(f"{row['length']} {name}", {})[row["variant"]] = text
        order = some[some["length"] == some["length"].max()].sort_values("change")["variant"]
        note = f"Loss of a masked word, in nats above softmax's ({per}), ± two standard errors over "
        note += "paragraphs; how much a word's loss changes either way; full cost. "
        note += f"{form(share, '%')} of the pairs where there is a choice. {rows['model'].iloc[0]}, {commits(rows)}."
        yield f"{study}-{form(100 * share, '0')}", Table(pd.DataFrame(cells).reindex(order).fillna(""), note)


def table_of_passes(rows: pd.DataFrame) -> Table:
    """A row a pass: the loss with an attention in that pass alone, and in all but that pass."""
    everywhere = rows[rows["passes"].isna()].iloc[0]
    some = [(json.loads(row["passes"]), row) for row in rows.dropna(subset=["passes"]).to_dict("records")]
    depth = 1 + max(max(passes) for passes, _ in some)
    cells: dict[str, dict[str, str]] = {}
    for passes, row in some:
        alone = len(passes) == 1
        (number,) = passes if alone else set(range(depth)) - set(passes)
        where = "in this pass alone" if alone else "in all others"
        cells.setdefault(str(number + 1), {}).update(
            {where: with_error(row), f"{where}, either way": form(row["change"], "2")}
        )
    order = ["in this pass alone", "in this pass alone, either way", "in all others", "in all others, either way"]
    table = pd.DataFrame.from_dict(cells, orient="index").sort_index(key=lambda names: names.astype(int))
    softmax, length = form(everywhere["softmax_loss"], "2"), everywhere["length"]
    note = f"{everywhere['attention']} in some of a model's {depth} passes, softmax in the others: loss "
    note += f"of a masked word, nothing trained, in nats above softmax's ({softmax}, {length} tokens), ± two standard "
    note += "errors over paragraphs; how much a word's loss changes either way. In all passes: "
    note += f"{with_error(everywhere)}, either way {form(everywhere['change'], '2')}. "
    note += f"{form(everywhere['share_asked'], '%')} of the pairs. "
    note += f"{everywhere['model']}, {commits(rows)}."
    return Table(table[order].rename_axis("pass"), note)


def plot_masked_words(rows: pd.DataFrame) -> Figure:
    """How the loss of a masked word changes against the full cost, one column a length; see the table's note."""
    lengths = list(rows["length"].unique())
    figure, axes = new_figure(6.6, 3.6, nrows=2, ncols=len(lengths), sharey="row", sharex=True)
    looks = hollow(rows.drop_duplicates("variant").set_index("variant")["attention"])
    for (upper, lower), length in zip(axes.T, lengths, strict=True):
        for variant, some in rows[rows["length"] == length].groupby("variant", sort=False):
            some, look = some.sort_values("cost"), dict[str, Any](looks[str(variant)])
            upper.errorbar(some["cost"], some["difference"], 2 * some["standard_error"], label=plain(variant), **look)
            lower.plot(some["cost"], some["change"], **look)
        upper.axhline(0, color="black", linewidth=0.6)
        upper.set(title=f"{length} tokens")
        lower.set(xlabel="full cost")
        lower.set_xscale("log", base=2)
        lower.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes[0, 0].set_yscale("symlog", linthresh=0.1)
    axes[1, 0].set_yscale("log")
    axes[0, 0].margins(y=0.08)
    axes[0, 0].set_ylabel("nats above\nsoftmax's")
    axes[1, 0].set_ylabel("change, either way")
    add_legend(figure, axes[0, 0], 4)
    return figure
