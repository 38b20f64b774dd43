"""The convolution of the values: against the reference and the originals; what it promises; its weights in a model."""

import copy

import pytest
import torch
from transformers import (
    AlbertConfig,
    AlbertModel,
    AutoModel,
    BertConfig,
    BertModel,
    NystromformerConfig,
    RobertaConfig,
    RobertaModel,
    YosoConfig,
)
from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention
from transformers.models.yoso.modeling_yoso import YosoSelfAttention

from albert_lsh import attention, load_model, save_memory, switch_attention
from references import naive_estimators

REFERENCES = {"nystrom": naive_estimators.nystrom, "yoso": naive_estimators.yoso, "yoso-e": naive_estimators.yoso_e}
SETTINGS = {
    "nystrom": {"num_landmarks": 7},
    "yoso": {"n_hashes": 5, "hash_code_len": 3},
    "yoso-e": {"hash_code_len": 4},
}


def tensors(shape, size):
    """Query, key, value, a filter for each head, and the gradient from above."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=generator) for s in (shape, shape, shape, (shape[1], size), shape)]


def padding(shape, kind):
    """None, padding at the end, or anywhere; the first sequence is full, every sequence has a token."""
    if kind == "full":
        return None
    lengths = torch.linspace(shape[2], 1, shape[0]).long()[:, None]
    mask = torch.arange(shape[2]) < lengths
    if kind == "scattered":
        mask |= torch.rand(mask.shape, generator=torch.Generator().manual_seed(1)) < 0.3
    return mask


def out_and_gradients(function, inputs, upstream):
    leaves = [t.clone().requires_grad_() for t in inputs]
    out = function(*leaves)
    out.backward(upstream.to(out.dtype))
    return [t.detach().double() for t in (out, *(leaf.grad for leaf in leaves))]


def error(measured, reference):
    difference = sum((m - r).square().sum() for m, r in zip(measured, reference, strict=True))
    return (difference / sum(r.square().sum() for r in reference)).sqrt().item()


@pytest.mark.parametrize("kind", ["full", "padded", "scattered"])
@pytest.mark.parametrize(("shape", "size"), [((1, 1, 1, 3), 3), ((2, 3, 5, 5), 1), ((3, 2, 37, 12), 5)], ids=str)
@pytest.mark.parametrize("name", SETTINGS)
def test_output_and_all_gradients_are_the_references(name, shape, size, kind):
    *inputs, upstream = tensors(shape, size)
    mask, settings = padding(shape, kind), {**SETTINGS[name], "conv_kernel_size": size}

    def ours(query, key, value, weight):
        return attention.attend(name, query, key, value, mask, seed=3, conv_weight=weight, **settings)

    def reference(query, key, value, weight):
        full = {**attention.check(name, settings), "conv_weight": weight, "scaling": shape[-1] ** -0.5}
        return REFERENCES[name](query, key, value, mask, generator=torch.Generator().manual_seed(3), **full)

    found, expected = (out_and_gradients(f, inputs, upstream) for f in (ours, reference))
    assert error(found, expected) < 2e-6
    assert error(found[-1:], expected[-1:]) < 2e-6  # of the filters


def original(name, heads, landmarks):
    """Transformers' layer with a convolution of 5 values, over 48 tokens, and the settings that say the same."""
    torch.manual_seed(0)
    common = {"hidden_size": 8 * heads, "num_attention_heads": heads}
    if name == "yoso-e":
        config = YosoConfig(**common, hash_code_len=7, use_expectation=True, conv_window=5)
        return YosoSelfAttention(config).eval(), {"hash_code_len": 7, "conv_kernel_size": 5}
    config = NystromformerConfig(**common, num_landmarks=landmarks, segment_means_seq_len=48, conv_kernel_size=5)
    layer = NystromformerSelfAttention(config).eval()
    layer.init_option = "exact"  # the pseudo-inverse begins for each head and sequence by itself, as ours does
    return layer, {"num_landmarks": landmarks, "conv_kernel_size": 5}


@pytest.mark.parametrize(
    ("name", "heads", "landmarks"),
    [("nystrom", 1, 8), ("nystrom", 3, 8), ("nystrom", 3, 48), ("yoso-e", 1, None), ("yoso-e", 3, None)],
)
def test_the_originals_in_transformers(name, heads, landmarks):
    """Output, and the gradients of hidden states, of every projection and of the filters; 48 landmarks are softmax."""
    layer, settings = original(name, heads, landmarks)
    found = []
    for ours in (False, True):
        layer.zero_grad()
        hidden = torch.randn(2, 48, 8 * heads, generator=torch.Generator().manual_seed(1), requires_grad=True)
        if ours:
            rows = [
                getattr(layer, part)(hidden).unflatten(-1, (heads, -1)).transpose(1, 2)
                for part in ("query", "key", "value")
            ]
            out = attention.attend(name, *rows, conv_weight=layer.conv.weight[:, 0, :, 0], **settings)
            out = out.transpose(1, 2).flatten(2)
        else:  # YosoSelfAttention multiplies the values by the mask, so tokens must have ones
            out = layer(hidden, torch.ones(2, 48) if name == "yoso-e" else None)[0]
        out.square().mul(torch.arange(8.0 * heads)).sum().backward()
        found.append([out.detach(), hidden.grad, *(p.grad.clone() for p in layer.parameters())])
    assert layer.conv.weight.grad.norm() > 1
    for name_of, one, other in zip(["out", "hidden", *dict(layer.named_parameters())], *found, strict=True):
        if name_of != "key.bias":  # softmax is blind to a constant in all keys: rounding errors on both sides
            assert error([other.double()], [one.double()]) < 2e-5, name_of


@pytest.mark.parametrize("name", SETTINGS)
def test_padding_does_not_leak_into_tokens(name):
    """The same sequences in a longer batch, with anything at all in the padding."""
    query, key, value, weight, _ = tensors((2, 3, 40, 8), 7)
    mask = torch.arange(40) < torch.tensor([[23], [11]])
    query, key, value = (x.masked_fill(~mask[:, None, :, None], torch.nan) for x in (query, key, value))
    settings = {**SETTINGS[name], "conv_kernel_size": 7, "conv_weight": weight.requires_grad_()}
    out = attention.attend(name, query, key, value, mask, **settings)
    out.sum().backward()
    assert weight.grad.isfinite().all()
    short = attention.attend(name, *(x[:, :, :23] for x in (query, key, value)), mask[:, :23], **settings)
    torch.testing.assert_close(out[:, :, :23], short)
    alone = attention.attend(name, *(x[1:, :, :11] for x in (query, key, value)), **settings)
    torch.testing.assert_close(out[1:, :, :11], alone)
    assert not out[:, :, 23:].any()
    assert not out[1, :, 11:].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", SETTINGS)
def test_weights_of_zero_change_nothing(name, dtype):
    query, key, value, weight, _ = tensors((2, 3, 19, 8), 5)
    rows, settings = [x.to(dtype) for x in (query, key, value)], SETTINGS[name]
    plain = attention.attend(name, *rows, padding((2, 3, 19, 8), "padded"), **settings)
    settings = {**settings, "conv_kernel_size": 5}
    mask = padding((2, 3, 19, 8), "padded")
    assert torch.equal(attention.attend(name, *rows, mask, conv_weight=0 * weight, **settings), plain)
    assert not torch.equal(attention.attend(name, *rows, mask, conv_weight=weight, **settings), plain)


def test_half_precision_rounds_no_worse_than_the_values():
    """bfloat16 keeps 8 bits: the convolution's share of the output is off by a rounding or two."""
    query, key, value, weight, _ = tensors((2, 3, 19, 8), 5)
    rows, settings = [x.bfloat16() for x in (query, key, value)], {"hash_code_len": 4}
    plain = attention.attend("yoso-e", *(x.float() for x in rows), **settings)
    settings |= {"conv_kernel_size": 5, "conv_weight": weight.bfloat16()}
    exact = attention.attend("yoso-e", *(x.float() for x in rows), **settings)
    out = attention.attend("yoso-e", *rows, **settings)
    assert out.dtype == torch.bfloat16
    assert (out - exact).norm() < 2**-8 * (exact - plain).norm()


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (
            "nystrom",
            {"conv_kernel_size": 4},
            "nystrom: conv_kernel_size=4 must be an odd whole number, 1 to",
        ),
        ("yoso", {"conv_kernel_size": -3}, "yoso: conv_kernel_size=-3 must be an odd whole number"),
        ("yoso-e", {"conv_kernel_size": 3.0}, "yoso-e: conv_kernel_size=3.0 must be an odd whole number"),
        ("yoso", {"conv_kernel_size": True}, "conv_kernel_size=True must be an odd whole number"),
        ("softmax", {"conv_kernel_size": 3}, "attention 'softmax' has no setting 'conv_kernel_size'"),
        ("softmax", {"conv_weight": torch.ones(2, 3)}, "attention 'softmax' has no convolution of the values"),
        ("nystrom", {"conv_kernel_size": 3}, r"conv_kernel_size=3 needs conv_weight of shape .* = (2, 3); got None"),
        ("yoso", {"conv_kernel_size": 3, "conv_weight": torch.ones(2, 5)}, r"= (2, 3); got (2, 5)"),
        ("yoso-e", {"conv_weight": torch.ones(2, 5)}, r"conv_kernel_size=None needs .* = None; got (2, 5)"),
    ],
)
def test_bad_kernels_are_named(name, settings, message):
    rows = [torch.ones(1, 2, 8, 4)] * 3
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace(")", r"\)")):
        attention.attend(name, *rows, **settings)


SMALL = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48, "num_hidden_layers": 3, "vocab_size": 99}
IDS = torch.arange(5, 47).view(2, 21)
MASK = (torch.arange(21) < torch.tensor([[21], [9]])).long()
LAYERS = {"albert": 1, "bert": 3, "roberta": 3}  # with weights of their own


@pytest.fixture(scope="module", params=LAYERS)
def folder(request, tmp_path_factory):
    """A small encoder of each type, saved as Transformers saves it."""
    torch.manual_seed(0)
    make = {
        "albert": lambda: AlbertModel(AlbertConfig(**SMALL, embedding_size=16, max_position_embeddings=40)),
        "bert": lambda: BertModel(BertConfig(**SMALL, max_position_embeddings=40)),
        "roberta": lambda: RobertaModel(RobertaConfig(**SMALL, max_position_embeddings=42, pad_token_id=1)),
    }
    path = tmp_path_factory.mktemp(request.param) / request.param
    make[request.param]().save_pretrained(path)
    return str(path)


def filters(model):
    return {name: p for name, p in model.named_parameters() if "convolution" in name}


def fill(model):
    with torch.no_grad():
        for number, weight in enumerate(filters(model).values()):
            weight.copy_(torch.linspace(-1, 1, weight.numel()).view_as(weight) + number)


def states(model):
    with torch.no_grad():
        return model(IDS, attention_mask=MASK).last_hidden_state[MASK.bool()]


@pytest.mark.parametrize("name", SETTINGS)
def test_a_pretrained_model_computes_at_first_what_it_would_without(folder, name):
    plain = load_model(folder, head="base", attention=name, settings=SETTINGS[name])
    model = load_model(folder, head="base", attention=name, settings={**SETTINGS[name], "conv_kernel_size": 5})
    assert torch.equal(states(model), states(plain))
    pretrained, weights = AutoModel.from_pretrained(folder).state_dict(), model.state_dict()
    assert all(torch.equal(pretrained[key], weights[key]) for key in pretrained)
    fill(model)
    assert not torch.allclose(states(model), states(plain))


@pytest.mark.parametrize("head", ["base", "classification", "question-answering", "masked-lm"])
def test_the_weights_begin_at_zero_whatever_was_in_memory(folder, head, monkeypatch):
    """Transformers makes room for weights that a checkpoint lacks, and leaves it to the model to fill it."""
    monkeypatch.setattr(torch, "empty_like", lambda tensor, **more: torch.full_like(tensor, 7, **more))
    model = load_model(folder, head=head, attention="yoso", settings={"conv_kernel_size": 5})
    assert [tuple(p.shape) for p in filters(model).values()] == [(4, 5)] * LAYERS[folder.rsplit("/", 1)[-1]]
    assert not any(p.any() for p in filters(model).values())


def test_the_weights_are_trained_saved_and_loaded_again(folder, tmp_path):
    settings = {"num_landmarks": 7, "conv_kernel_size": 3}
    model = load_model(folder, attention="nystrom", settings=settings, num_labels=3).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(IDS, attention_mask=MASK, labels=torch.tensor([0, 2])).loss.backward()
    optimizer.step()
    assert all(p.any() for p in filters(model).values())
    model.eval().save_pretrained(tmp_path)
    again = load_model(str(tmp_path))
    assert filters(again).keys() == filters(model).keys()
    assert all(torch.equal(p, filters(model)[key]) for key, p in filters(again).items())
    with pytest.raises(ValueError, match=r"convolution.weight is \(4, 3\) in its file, not \(4, 5\)"):
        load_model(str(tmp_path), settings={"conv_kernel_size": 5, "num_landmarks": 7})
    with torch.no_grad():
        assert torch.equal(again(IDS, attention_mask=MASK).logits, model(IDS, attention_mask=MASK).logits)
        assert torch.equal(copy.deepcopy(model)(IDS).logits, model(IDS).logits)


def test_the_weights_move_with_the_model(folder):
    model = load_model(folder, head="base", attention="yoso-e", settings={"conv_kernel_size": 3}).to(torch.bfloat16)
    assert {p.dtype for p in filters(model).values()} == {torch.bfloat16}
    assert states(model).dtype == torch.bfloat16
    switch_attention(model, "yoso-e", {"conv_kernel_size": 5})
    assert {p.dtype for p in filters(model).values()} == {torch.bfloat16}
    assert {p.device.type for p in filters(model.to("meta")).values()} == {"meta"}


def test_switching_keeps_the_weights_of_the_same_size(folder):
    """The very parameters, which an optimiser may hold; another size begins at zero."""
    model, settings = load_model(folder, head="base"), {"hash_code_len": 4, "conv_kernel_size": 3}
    plain = states(switch_attention(model, "yoso-e", {"hash_code_len": 4}))
    assert not filters(model)
    assert torch.equal(states(switch_attention(model, "yoso-e", settings)), plain)
    fill(model)
    there, filled = filters(model), states(model)
    assert torch.equal(states(switch_attention(model, "yoso-e", {"hash_code_len": 4})), plain)
    switch_attention(model, "nystrom", {"num_landmarks": 7, "conv_kernel_size": 3})
    assert torch.equal(states(switch_attention(model, "yoso-e", settings)), filled)
    assert all(p is there[key] for key, p in filters(model).items())
    switch_attention(model, "yoso-e", {**settings, "conv_kernel_size": 5})
    assert not any(p.any() for p in filters(model).values())
    assert torch.equal(states(model), plain)


def test_recomputing_gives_the_same_gradients(folder):
    grads = []
    for recompute in (False, True):
        settings = {"n_hashes": 5, "hash_code_len": 3, "conv_kernel_size": 3}
        model = load_model(folder, head="base", attention="yoso", settings=settings).train()
        save_memory(model, recompute=recompute)
        fill(model)
        torch.manual_seed(2)
        model(IDS, attention_mask=MASK).last_hidden_state.square().sum().backward()
        grads.append([p.grad for p in filters(model).values()])
    for one, other in zip(*grads, strict=True):
        assert one.any()
        torch.testing.assert_close(other, one)


def test_bad_kernels_of_models_are_named(folder):
    for function in (load_model, lambda f, **k: switch_attention(load_model(f), **k)):
        with pytest.raises(ValueError, match="nystrom: conv_kernel_size=6 must be an odd whole number, 1 to"):
            function(folder, attention="nystrom", settings={"conv_kernel_size": 6})
