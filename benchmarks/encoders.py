"""Which types of the installed Transformers can have our attentions; the trial calls of every type that takes texts.

python benchmarks/encoders.py     writes results/encoders.csv; a type that needs more than its config is left out
"""

import logging
import warnings

import pandas as pd
import transformers
from transformers import AutoModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from albert_lsh.encoders import ModelError, try_encoder


def outcome(kind: str) -> str | None:
    """What a trial call of a type's usual config came to: "yes", or why not; None where there is none to make."""
    try:
        config = CONFIG_MAPPING[kind]()
        if AutoModel._model_mapping[type(config)].main_input_name != "input_ids":
            return None
    except Exception:  # of some types a config needs more than its defaults; others have no model, or need a package
        return None
    try:
        try_encoder(config)
    except ModelError as refused:
        return " ".join(str(refused).split())
    return "yes"


def main() -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    transformers.logging.set_verbosity_error()
    rows = []
    for kind in sorted(CONFIG_MAPPING):
        if (found := outcome(kind)) is not None:
            print(kind, "|", found, flush=True)
            rows.append({"type": kind, "outcome": found, "transformers": transformers.__version__})
    pd.DataFrame(rows).to_csv("results/encoders.csv", index=False)


if __name__ == "__main__":
    main()
