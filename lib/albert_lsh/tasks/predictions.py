"""predictions.parquet: what a model says of every example, so that questions about examples need no new run.

Numbers only, never a text. A row per evaluated example:

    classification, regression    split; id, GLUE's `idx` or else the row's number in its split; label; answer, the
                                  class; logit_0, logit_1, ... (regression: label and logit_0 are the values)
    SQuAD                         id of the question; start, end: the best span, [start, end) in the paragraph's
                                  characters; score: its start logit plus its end logit; null_score: the same of no
                                  answer; answered: False if no answer was given; is_answerable

`metrics.scores_of` and `squad.scores_of` compute the task's scores from such a table again.
"""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

LIMIT = 200_000  # bytes


def write_predictions(path: Path, table: pd.DataFrame) -> None:
    """Write a table of predictions in one step; logits and scores in half precision if they exceed 200 kB otherwise.

    Answers, labels and positions are exact either way.

    Args:
        path: of the file to write or replace.
        table: of `metrics.score_splits` or `squad.predictions`.
    Raises:
        ValueError: a column of text other than id and split.
    """
    texts = [name for name in table if table[name].dtype == object or pd.api.types.is_string_dtype(table[name])]
    if unknown := [name for name in texts if name not in ("id", "split")]:
        raise ValueError(f"{path.name}: column {unknown[0]!r} holds text; predictions are numbers")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    for precision in (np.float32, np.float16):
        outputs = [name for name in map(str, table) if name.startswith("logit_") or name in ("score", "null_score")]
        rounded = table.astype(dict.fromkeys(outputs, precision))
        pq.write_table(pa.Table.from_pandas(rounded, preserve_index=False), partial, **encoding(rounded))
        if partial.stat().st_size <= LIMIT:
            break
    os.replace(partial, path)


def encoding(table: pd.DataFrame) -> dict:
    """How Parquet packs each column: differences of whole numbers and of ids, bytes of floats side by side."""
    kinds = {"i": "DELTA_BINARY_PACKED", "u": "DELTA_BINARY_PACKED", "f": "BYTE_STREAM_SPLIT", "b": "PLAIN"}
    packed = {name: kinds.get(table[name].dtype.kind, "DELTA_BYTE_ARRAY") for name in table if name != "split"}
    return {
        "compression": "zstd",
        "compression_level": 19,
        "use_dictionary": ["split"] if "split" in table else False,
        "column_encoding": packed,
    }


def read_predictions(path: Path) -> pd.DataFrame:
    """The table that `write_predictions` wrote.

    Raises:
        ValueError: the file is missing or damaged; the message names it.
    """
    try:
        return pq.read_table(path).to_pandas()
    except (OSError, pa.ArrowInvalid) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
