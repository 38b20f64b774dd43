"""Small encoders, as Transformers saves them, weights changed in their files, and a batch of token ids with padding."""

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel

SMALL = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48, "num_hidden_layers": 3, "vocab_size": 99}


def batch(vocab=99, length=21):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, vocab, (3, length), generator=generator)
    mask = torch.arange(length) < torch.tensor([[length], [length - 8], [5]])
    return {"input_ids": ids, "attention_mask": mask.long()}


def config_of(kind, **more):
    """For 40 tokens: the positions of RoBERTa's family begin behind padding."""
    shape = {**SMALL, "hidden_dim": 48, "embedding_size": 16, "pad_token_id": 1}
    positions = 42 if "roberta" in kind else 40
    return AutoConfig.for_model(kind, max_position_embeddings=positions, **shape | more)


def save_encoder(kind, path):
    """A small encoder, as Transformers saves it; returns its folder."""
    torch.manual_seed(0)
    AutoModel.from_config(config_of(kind)).save_pretrained(path)
    return str(path)


def change_weights(folder, change):
    """Save what `change` makes of the weights by name."""
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})
