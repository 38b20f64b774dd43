"""Put a pretrained model into the package: its weights in bfloat16, its tokenizer, and a card made from its record.

python tools/ship.py results/pretraining/nano-lsh/seed-0 nano-lsh
"""

import json
import shutil
import sys
from pathlib import Path

import pandas as pd
from safetensors.torch import load_file, save_file

from albert_lsh import pretrained
from albert_study.experiments.pretrain import Pretraining

WHERE_IT_WAS = ("is_local", "local_files_only")  # of the tokenizer, when the run loaded it
SOURCE = """English Wikipedia, a dump of spring 2015 (the public repository jason-feng/wikiVisual at 1c0fac92,
  paragraphs of 100 characters or more without formulas and tables), under CC BY-SA 3.0; not part of this package."""


def command(asked: dict) -> str:
    """What is typed to have the run again: the parameters that are not the usual ones."""
    usual = {name: field.default for name, field in Pretraining.model_fields.items() if name not in Pretraining.where}
    changed = {key: asked[key] for key in usual if key in asked and asked[key] != usual[key]}
    changed["text"] = Path(asked["text"]).name
    words = ((key, f"'{json.dumps(value)}'" if isinstance(value, dict) else value) for key, value in changed.items())
    return " ".join(["python -m albert_study.experiments.pretrain", *(f"{key}={value}" for key, value in words)])


def card(name: str, record: dict, curve: pd.DataFrame) -> str:
    """The model card: what it is, what it was trained on, its curve and its scores."""
    asked, scores, counting = record["parameters"], record["metrics"], record["counting"]
    settings = json.dumps(asked["attention_settings"])
    rows = curve[["step", "mlm_loss", "mlm_accuracy", "sop_accuracy"]].dropna().round(3)
    lines = ["| " + " | ".join(rows) + " |", "|" + "---|" * len(rows.columns)]
    lines += ["| " + " | ".join(f"{value:g}" for value in row) + " |" for row in rows.itertuples(index=False)]
    tokens, held_out = record["tokens"], record["sequences"]["held_out"]
    trained_on = f"{record['environment']['device']}, at {record['tokens_per_second']:,.0f} tokens a second"
    made = f"commit {record['environment']['commit']}, {record['environment']['date']}"
    again = command(asked)
    trained_for = (
        f"{asked['steps']:,} steps of {asked['batch_size']} sequences of up to {asked['max_length']} tokens: "
        f"{tokens['trained']:,} tokens, where the text has {tokens['text']:,}. Seed {asked['seed']}, "
        f"adamw, learning rate {asked['learning_rate']:g}, {asked['precision']}."
    )
    reached = (
        f"loss {scores['mlm_loss']:.3f} ({counting['mlm_loss']:.3f}) nats a masked token, accuracy of masked tokens "
        f"{scores['mlm_accuracy']:.3f} ({counting['mlm_accuracy']:.3f}), "
        f"of the order {scores['sop_accuracy']:.3f} (0.5)"
    )
    return f"""---
license: apache-2.0
language: en
---
# {name}

A small ALBERT ({record["parameters_of_model"]:,} parameters, size `{asked["size"]}` of pretrain.ipynb),
pretrained with `{asked["attention"]}` attention, settings `{settings}`.
Made to try things with, not to be good at them.

- Text: {SOURCE}
- Objectives: masked n-grams and sentence order, as ALBERT's; {asked["masked_share"]:.0%} of the tokens masked in
  training, 15 % in evaluation.
- {trained_for}
- {record["train_seconds"] / 3600:.1f} hours on {trained_on}; {made}.
- On {held_out} sequences held out (in brackets: what counting pieces, or a coin, reaches): {reached}.
- Again: `{again}`
- The weights are stored in bfloat16 and loaded in float32; they are under the package's licence.

{chr(10).join(lines)}
"""


def ship(run: Path, name: str) -> None:
    """Copy a finished run's model to the package; SystemExit for a run that is none."""
    if not (run / "result.json").exists():
        sys.exit(f"{run} holds no finished run: there is no result.json")
    folder = Path(pretrained.__file__).parent / name
    folder.mkdir(exist_ok=True)
    record = json.loads((run / "result.json").read_text())
    weights = {key: value.bfloat16() for key, value in load_file(run / "model" / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    shutil.copy(run / "model" / "config.json", folder)
    (folder / "README.md").write_text(card(name, record, pd.read_csv(run / "history.csv")), encoding="utf-8")
    tokenizer = run / "model" / "tokenizer.json"
    if tokenizer.read_bytes() != (Path(pretrained.folder_of("nano")) / "tokenizer.json").read_bytes():
        shutil.copy(tokenizer, folder)
        asked = json.loads(tokenizer.with_name("tokenizer_config.json").read_text())
        kept = {key: value for key, value in asked.items() if key not in WHERE_IT_WAS}
        (folder / "tokenizer_config.json").write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    ship(Path(sys.argv[1]), sys.argv[2])
