"""Put a fine-tuned model on the Hub: its weights, its tokenizer and its card.

    albert-lsh push results/runs/.../seed-0 owner/name

The token is that of `hf auth login`, or of HF_TOKEN, and must be one that may write. A repository that does not exist
is made, and is public; to have it private, make it on the Hub first.
"""

from pathlib import Path

from huggingface_hub import HfApi, get_token
from huggingface_hub.utils import HFValidationError, validate_repo_id

from albert_lsh.card import write_card
from albert_lsh.errors import OneLineError
from albert_lsh.model.config import loading
from albert_lsh.model.load import load_config, load_tokenizer
from albert_lsh.record import read_result

UPLOADED = ["*.json", "*.jinja", "*.model", "*.safetensors", "*.txt", "*.yaml", "README.md"]


class PushError(OneLineError):
    """What keeps a model from being pushed."""


def model_folder(folder: Path) -> Path:
    """The folder of a run's model, or the folder itself; a run's model without a card is given one.

    Raises:
        PushError: no folder, or none with a model. ModelError: a type that is not supported, or no tokenizer.
    """
    record = folder / "result.json"
    model = folder / "model" if record.is_file() else folder
    if not (model / "config.json").is_file() or not any(model.glob("*.safetensors")):
        why = (
            "its run kept no model: make it with save_model=True" if record.is_file() else "no folder of a run or model"
        )
        raise PushError(f"{folder} has no model (config.json and *.safetensors): {why}")
    load_config(str(model))
    load_tokenizer(str(model))
    if record.is_file() and not (model / "README.md").exists():
        write_card(model, read_result(record))
    return model


def push(folder: Path, name: str) -> str:
    """Upload the model of a run's or a model's folder; returns its address.

    Args:
        name: owner/name on the Hub.
    Raises:
        PushError: a name that is none, no token. ModelError: what the Hub refuses, for instance that token.
    """
    model = model_folder(folder)
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise PushError(f"{name!r} is no name on the Hub: {error}") from error
    if name.count("/") != 1:
        raise PushError(f"{name!r} is no name on the Hub: it must be owner/name")
    if get_token() is None:
        raise PushError("there is no token for the Hub: `hf auth login` keeps one, or set HF_TOKEN")
    api = HfApi(library_name="albert-lsh")
    with loading(f"{api.endpoint} cannot be reached, or does not take the token"):
        api.whoami()
    with loading(f"{name!r} could not be uploaded to {api.endpoint}"):
        api.create_repo(name, exist_ok=True)
        api.upload_folder(folder_path=model, repo_id=name, allow_patterns=UPLOADED, commit_message="Upload model")
    return f"{api.endpoint}/{name}"
