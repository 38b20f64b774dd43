"""What tasks, metrics and arms are called, in which order they stand, and which colour, line and marker arms have.

Colours belong to attentions and are the same in every figure, which can be read in grey too.
"""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pandas as pd

from albert_lsh import attention as attentions
from albert_lsh.kinds import Classification, QuestionAnswering
from albert_lsh.tasks import TASKS

TITLES = {"sst2": "SST-2", "cola": "CoLA", "mnli": "MNLI", "stsb": "STS-B", "mrpc": "MRPC", "squad": "SQuAD 1.1"}
TITLES |= {"squad-v2": "SQuAD 2.0", "kor-sts": "KorSTS", "kor-qpair": "Korean question pairs", "nsmc": "NSMC"}
RUNGS = {  # of studies/ladder.yaml, from the block of 2020 up; on it softmax is a rung
    "2020-block": "0 block of 2020",
    "with-residual": "1 + residual",
    "with-mask": "2 + mask",
    "tied-keys": "3 projections kept",
    "softmax": "4 keys of their own",
    "lsh": "LSH ¼, mean key",
    "key-clusters": "key clusters ½",
}
CORE = ("half", "quarter")  # shares of studies/lsh-limit.yaml that all of its attentions have
SHARES = {"three-quarters": "¾", "half": "½", "quarter": "¼", "eighth": "⅛"}
BESIDE = {"no-residual": "softmax, no residual", "tied-keys-causal": "rung 3, causal"}  # beside the ladder
ARMS = {  # what an arm is, beside softmax, in words and in the order of figures
    **{arm: RUNGS[arm] for arm in ("2020-block", "with-residual", "with-mask", "tied-keys")},
    **BESIDE,
    "new": "new projections",
    "new-best-rate": "new projections, best rate",
    "new-query-key": "new query and key",
    "new-value-output": "new value and output",
    "queries-as-keys": "keys are queries",
    "unit-queries-as-keys": "and of length one",
    "unit-keys": "own keys of length one",
    "others-only": "own keys, not of itself",
    "shared-qk": "tied keys",
    "shared-qk-2e-4": "tied keys at 2e-4",
    "reformer": "new and tied",
    "shared-qk-lsh": "tied, hashed",
    "new-shared-qk-lsh": "new, tied, hashed",
    "lsh": "LSH (random hashing)",
    **{f"lsh-{share}": f"LSH {sign}" for share, sign in SHARES.items()},
    **{f"lsh-mean-{share}": f"LSH {sign}, mean key" for share, sign in SHARES.items()},
    "smyrf-2x32": "SMYRF, 2 x 32",
    "key-clusters": "key clusters",
    "key-clusters-third": "key clusters at a third",
    "key-clusters-half": "key clusters at a half",
    "key-clusters-quarter": "key clusters at a quarter",
    "random-rest": "random keys, mean key",
    **{f"random-mean-{share}": f"random keys {SHARES[share]}, mean key" for share in CORE},
    "random": "random keys",
    "window": "nearest keys",
    "nystrom": "Nyström",
    "yoso-e": "YOSO-E",
    "truncated": "softmax, cut text",
}
# How an arm was trained, where a study varies it: "new-10-epochs", "new-20000" (examples), "2020-block-low-rate".
TRAINED = re.compile(r"-(\d+-epochs|\d{4,}|rate-of-\d{4}|(?:low|high)-rate)$")
METRICS = {  # those that are shown, by the name they have in a table
    "f1": "F1",
    "accuracy": "accuracy",
    "accuracy_mismatched": "acc. mism.",
    "exact": "exact",
    "matthews": "Matthews",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "accuracy_f1_mean": "mean of acc. and F1",
}

STYLES: dict[str, tuple[str, Any, str]] = {
    # colour, after Okabe and Ito (told apart by colour-blind readers), line, marker
    "softmax": ("#000000", "-", "o"),
    "softmax-eager": ("#7f7f7f", "-", "h"),
    "reformer": ("#d55e00", "--", "s"),
    "shared-qk": ("#e69f00", "-.", "^"),
    "shared-qk-lsh": ("#cc79a7", (0, (6, 1, 1, 1, 1, 1)), "v"),
    "lsh": ("#999933", (0, (3, 1.5)), "d"),
    "key-clusters": ("#0072b2", (0, (7, 1.5)), "D"),
    "window": ("#56b4e9", ":", "P"),
    "random": ("#009e73", (0, (1, 1.5)), "X"),
    "top-k": ("#cfae00", (0, (3, 1, 1, 1)), "*"),
    "nystrom": ("#882255", (0, (5, 1, 1, 1, 1, 1)), "p"),
    "yoso": ("#44aa99", (0, (2, 1)), "<"),
    "yoso-e": ("#117733", (0, (4, 2)), ">"),
    "LSG": ("#332288", (0, (2, 1, 1, 1)), "^"),  # of another package, in benchmarks/
    # arms of studies that are more than an attention
    "new": ("#aa4499", (0, (8, 2)), "H"),
    "new-best-rate": ("#882266", (0, (5, 1)), "h"),
    "new-shared-qk-lsh": ("#cc6677", (0, (3, 1, 1, 1, 1, 1)), "8"),
    "key-clusters-third": ("#4477aa", (0, (2, 2)), "D"),
    "key-clusters-half": ("#88bbdd", (0, (4, 2)), "D"),
    "truncated": ("#666666", (0, (1, 1)), "o"),
    "2020-block": ("#d55e00", "--", "s"),
    "with-residual": ("#e8924f", (0, (4, 1.5)), "^"),
    "with-mask": ("#b08a3c", (0, (2, 1)), "v"),
    "tied-keys": ("#cc79a7", (0, (6, 1, 1, 1, 1, 1)), "v"),
    "tied-keys-causal": ("#a0457a", (0, (1, 1.5)), "v"),
    "no-residual": ("#7f7f7f", (0, (5, 2)), "o"),
    # what can be had without attention
    "majority class": ("#444444", "-", ""),
    "counting, or a coin": ("#444444", ":", ""),
}
MORE_COLOURS = ("#d55e00", "#009e73", "#cc79a7", "#332288", "#cfae00", "#44aa99")  # of a sweep
SPARE = (("#661100", (0, (5, 2)), "s"), ("#332288", (0, (2, 1, 1, 1)), "^"), ("#888888", (0, (6, 2, 1, 2)), "o"))


def scale_of(task: Any, metric: str) -> tuple[int, int]:
    """The best score of a task, and how many decimals of its scores mean something.

    Of one's own data only those of SQuAD's schema have an F1.
    """
    if task in TASKS and metric in ("exact", "f1"):
        return TASKS[task].perfect, TASKS[task].digits
    kind = QuestionAnswering if metric in ("exact", "f1") else Classification
    return kind.perfect, kind.digits


def in_order(arms: Iterable[str]) -> list[str]:
    """The arms, each once, as figures have them: softmax, those of ARMS, and others."""
    places = ["softmax", *ARMS]
    return sorted(dict.fromkeys(arms), key=lambda arm: places.index(arm) if arm in places else len(places))


def names_of(arms: Iterable[str]) -> dict[str, str]:
    """What the arms of a study are called: those of ARMS, but for LSH and key clusters of the ladder, which differ."""
    return ARMS | ({arm: RUNGS[arm] for arm in ("lsh", "key-clusters")} if "2020-block" in {*arms} else {})


def base_of(arm: str) -> str:
    """The arm without how it was trained: "softmax-8000" is softmax."""
    return TRAINED.sub("", arm)


def name_of_size(kind: str, size: str) -> str:
    """What a pretrained model is called: "nano" of ALBERT, "bert-small", "modernbert-nano"."""
    return size if kind == "albert" else f"{kind}-{size.removeprefix('bert-')}"


def look_of(arm: str, attention: str = "") -> dict[str, Any]:
    """Matplotlib's colour, line and marker of an arm: its own, however it was trained, else those of its attention.

    An attention added to the library gets a spare one, anything else is grey.
    """
    added = (name for name in attentions.names() if name not in STYLES)
    styles = {**dict(zip(added, SPARE, strict=False)), **STYLES}
    base = base_of(arm)
    colour, line, marker = styles.get(base, styles.get(attention or base, ("#999999", "-", "*")))
    return {"color": colour, "linestyle": line, "marker": marker}


def looks_of(lines: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """By `name` the look of its arm or attention; the second in a colour has a hollow marker, others other colours.

    lines: columns name, and look (an arm) or attention, if the name itself is none.
    """
    looks: dict[str, dict[str, Any]] = {}
    ranks: Counter[str] = Counter()
    for line in lines.drop_duplicates("name").to_dict("records"):
        look = look_of(line.get("look", line["name"]), line.get("attention", ""))
        ranks[look["color"]] += 1
        rank = ranks[look["color"]] - 1
        if rank > 1:
            look["color"] = MORE_COLOURS[(rank - 2) % len(MORE_COLOURS)]
        marker = (look["marker"], look["marker"], "s", "^", "v")[min(rank, 4)]
        hollow = {"markerfacecolor": "white", "markersize": 5, "markeredgewidth": 0.8} if rank else {}
        looks[line["name"]] = look | {"marker": marker} | hollow
    return looks
