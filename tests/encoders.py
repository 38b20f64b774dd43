"""Small encoders of the three types, as Transformers saves them, and a batch of token ids with padding."""

import torch
from transformers import (
    AlbertConfig,
    AlbertModel,
    BertConfig,
    BertModel,
    RobertaConfig,
    RobertaModel,
)

SMALL = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48, "num_hidden_layers": 3, "vocab_size": 99}


def batch(vocab=99, length=21):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, vocab, (3, length), generator=generator)
    mask = torch.arange(length) < torch.tensor([[length], [length - 8], [5]])
    return {"input_ids": ids, "attention_mask": mask.long()}


def save_encoder(kind, path):
    """A small encoder, as Transformers saves it; returns its folder."""
    torch.manual_seed(0)
    make = {
        "albert": lambda: AlbertModel(AlbertConfig(**SMALL, embedding_size=16, max_position_embeddings=40)),
        "bert": lambda: BertModel(BertConfig(**SMALL, max_position_embeddings=40)),
        "roberta": lambda: RobertaModel(RobertaConfig(**SMALL, max_position_embeddings=42, pad_token_id=1)),
    }
    make[kind]().save_pretrained(path)
    return str(path)
