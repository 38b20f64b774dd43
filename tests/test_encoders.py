"""Which encoders can have our attentions: found out by a trial call, and said why not."""

import copy
from typing import ClassVar

import pytest
import torch
from transformers import AutoConfig, AutoModel, BertConfig, PreTrainedModel
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import BaseModelOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from albert_lsh import encoders, load_model, switch_attention
from albert_lsh.encoders import ModelError, max_positions, try_encoder
from albert_lsh.model.projections import draw_projections, drop_residual
from encoders import SMALL, TYPES, batch, config_of

BATCH = batch()
KEEP = BATCH["attention_mask"].bool()


def states(model):
    with torch.no_grad():
        return model.eval()(**BATCH).last_hidden_state[KEEP]


@pytest.mark.parametrize("option", ["is_decoder", "add_cross_attention"])
def test_a_decoder_is_refused_however_it_is_made(option):
    refused, model = f"{option}=True: no decoder can have these attentions$", AutoModel.from_config(config_of("bert"))
    with pytest.raises(ModelError, match=refused):
        AutoModel.from_config(config_of("bert", **{option: True}), attn_implementation="albert_lsh")
    setattr(model.config, option, True)
    with pytest.raises(ModelError, match=refused):
        switch_attention(model, "key-clusters")


REFUSED = {
    "megatron-bert": "it computes its attention itself, and asks for no other",
    "mpnet": "it computes its attention itself, and asks for no other",
    "deberta-v2": "it called no attention before a trial call failed .RuntimeError: [^\n]*",
    "gpt2": "its tokens do not see all others: a decoder, or a mask of its own",
    "modernbert-decoder": "its tokens do not see all others: a decoder, or a mask of its own",
    "bart": "its tokens do not see all others: a decoder, or a mask of its own",
    "vit": "no encoder of texts",
}
SHAPES = {
    "gpt2": {"n_embd": 8, "n_head": 2, "n_layer": 1},
    "bart": {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "bos_token_id": 2, "eos_token_id": 3},
    "modernbert-decoder": TYPES["modernbert"],
}


@pytest.mark.parametrize("kind", REFUSED)
def test_every_other_type_is_refused_in_one_line(kind):
    config = AutoConfig.for_model(kind, **{**SMALL, "pad_token_id": 1, **SHAPES.get(kind, {})})
    message = rf"\({kind}\) cannot have these attentions: {REFUSED[kind]}$"
    model = AutoModel.from_config(config)
    before = model.config._attn_implementation
    ways = [
        lambda: switch_attention(model, "key-clusters"),
        lambda: load_model(config, head="base"),
        lambda: AutoModel.from_config(copy.deepcopy(config), attn_implementation="albert_lsh"),
        lambda: AutoModel.from_config(copy.deepcopy(config), attn_implementation="key-clusters"),
        # Of some types Transformers says itself that it cannot be set.
        *([lambda: model.set_attn_implementation("lsh")] if model._can_set_attn_implementation() else []),
    ]
    for way in ways:
        with pytest.raises(ModelError, match=message):
            way()
        assert model.config._attn_implementation == before


class Asking(PreTrainedModel):
    """One layer that asks for an attention as its `asking` says."""

    config_class, base_model_prefix, _supports_sdpa = BertConfig, "base", True
    asking: ClassVar[dict] = {}

    def __init__(self, config):
        super().__init__(config)
        self.embed, self.layer = torch.nn.Embedding(config.vocab_size, 32), torch.nn.Identity()
        self.post_init()

    def forward(self, input_ids, attention_mask=None, **options):
        x = self.embed(input_ids)
        rows, ask = x.unflatten(-1, (4, 8)).transpose(1, 2), {"scaling": 1.0, "keys": 4, "times": 1, **self.asking}
        mask = create_bidirectional_mask(self.config, x, attention_mask, and_mask_function=ask.pop("rule", None))
        mask, keys, times = ask.pop("mask", mask), rows[:, : ask.pop("keys")], ask.pop("times")
        attend = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
        for _ in range(times):
            out = attend(self.layer, rows, keys, keys, mask, **ask, **options)[0]
        return BaseModelOutput(last_hidden_state=out.flatten(2))


ASKING = {
    "nothing else": ({}, None),
    "heads that share keys": ({"keys": 2}, None),
    "heads that cannot share": ({"keys": 3}, "its heads of keys do not divide those of queries"),
    "a bias": ({"position_bias": torch.zeros(1)}, "its attention has position_bias, which ours have not"),
    "no scaling": ({"scaling": None}, "its attention has no scaling, which ours have not"),
    "its own mask": ({"mask": torch.zeros(1)}, "it makes the mask of its attention itself"),
    "a rule": ({"rule": lambda b, h, q, k: q >= k - 600}, "its tokens do not see all others"),
    "no attention": ({"times": 0}, "it computes its attention itself"),
    "two in a layer": ({"times": 2}, "num_hidden_layers=1, and it calls 2 attentions"),
}


@pytest.mark.parametrize("case", ASKING)
def test_how_a_model_asks_for_its_attention_decides(case, monkeypatch):
    """Of a class that nobody here has seen."""
    asking, refused = ASKING[case]
    monkeypatch.setattr(Asking, "asking", asking)
    monkeypatch.setattr(encoders, "TRIED", {})
    model = Asking(BertConfig(vocab_size=99, hidden_size=32, num_hidden_layers=1)).eval()
    if refused:
        with pytest.raises(ModelError, match=f"cannot have these attentions: {refused}"):
            switch_attention(model, "window", {"keys": 1})
    else:
        before = states(switch_attention(model, "softmax"))
        assert not torch.allclose(states(switch_attention(model, "window", {"keys": 1})), before)


def test_what_a_call_asks_for_beside_its_tokens_is_refused():
    model = switch_attention(AutoModel.from_config(config_of("bert")), "lsh").eval()
    with pytest.raises(ValueError, match="^attention 'lsh' has no is_causal; [^\n]*$"):
        model(**BATCH, is_causal=True)
    chains = AutoModel.from_config(config_of("esmc"), attn_implementation="lsh")
    with pytest.raises(ValueError, match="^our attentions take a mask of padding alone; [^\n]*$"):
        chains(BATCH["input_ids"], sequence_id=BATCH["attention_mask"])


def test_local_layers_alone_leave_nothing_to_us():
    config = config_of("modernbert", layer_types=["sliding_attention"] * 3)
    with pytest.raises(ModelError, match="all of its layers see a window alone$"):
        AutoModel.from_config(config, attn_implementation="key-clusters")


def test_a_trial_draws_no_random_numbers():
    config = config_of("bert", hidden_size=36)  # of which no other test has asked
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    try_encoder(config)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("kind", ["bert", "camembert", "data2vec-text", "roberta-prelayernorm", "xlm-roberta-xl"])
def test_positions_end_where_their_table_does(kind):
    """Of RoBERTa's kin they begin behind that of padding, which the table names."""
    config = config_of(kind)
    table = AutoModel.from_config(config).base_model.embeddings.position_embeddings
    reserved = 0 if table.padding_idx is None else table.padding_idx + 1
    assert max_positions(config) == table.num_embeddings - reserved


@pytest.mark.parametrize("kind", ["distilbert", "mobilebert", "modernbert"])
def test_what_is_changed_around_an_attention_is_alberts_and_berts(kind):
    refused = f": not in a model of type {kind}; take one of albert, bert, "
    for change in (
        draw_projections,
        drop_residual,
        lambda model: load_model(model.config, head="base", attention="reformer"),
    ):
        with pytest.raises(ModelError, match=refused):
            change(load_model(config_of(kind), head="base"))
