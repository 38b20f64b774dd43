"""Small encoders, as Transformers saves them, weights changed in their files, and a batch of token ids with padding."""

import torch
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING, AutoConfig, AutoModel

SMALL = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48, "num_hidden_layers": 3, "vocab_size": 99}

# Types of encoder, and what their small models need besides. The last six have rotary positions; two of these have
# local layers, and one shares keys among heads.
LEARNED = "albert bert roberta xlm-roberta camembert electra ernie data2vec-text distilbert"
TYPES = {kind: {} for kind in LEARNED.split()}
SPECIAL = {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
TYPES |= {
    "modernbert": {"local_attention": 8, "global_attn_every_n_layers": 2, **SPECIAL},
    "eurobert": {"num_key_value_heads": 2, "mask_token_id": 4, **SPECIAL},
    "ultrabert": {"sliding_window": 4, "layer_types": ["full_attention", "sliding_attention", "full_attention"]},
    "nomic_bert": {},
    "gte": {},
    "jina_embeddings_v3": {},
}
TYPES = {kind: more for kind, more in TYPES.items() if kind in CONFIG_MAPPING}  # Transformers 5.13 lacks two


def batch(vocab=99, length=21):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, vocab, (3, length), generator=generator)
    mask = torch.arange(length) < torch.tensor([[length], [length - 8], [5]])
    return {"input_ids": ids, "attention_mask": mask.long()}


def config_of(kind, **more):
    """For 40 tokens: the positions of RoBERTa's family begin behind padding."""
    shape = {**SMALL, "hidden_dim": 48, "embedding_size": 16, "pad_token_id": 1, **TYPES.get(kind, {})}
    shape["max_position_embeddings"] = 42 if "roberta" in kind else 40
    return AutoConfig.for_model(kind, **shape | more)


def save_encoder(kind, path):
    """A small encoder, as Transformers saves it; returns its folder."""
    torch.manual_seed(0)
    AutoModel.from_config(config_of(kind)).save_pretrained(path)
    return str(path)


def change_weights(folder, change):
    """Save what `change` makes of the weights by name."""
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})
