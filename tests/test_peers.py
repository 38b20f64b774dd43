"""Attentions of one's own and of others: registered by one public function, and then known everywhere."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from albert_lsh import attention, load_model, record_passes
from attention_cases import check_reference, each, padding, run, tensors
from encoders import batch, config_of
from references import peers as naive

PEERS = Path(__file__).parents[1] / "benchmarks"
CASES = [
    ("hyper", {"cluster_size": 5, "sample_size": 7}),
    ("hyper", {"share": 0.4}),
    ("linear", {}),
]


@pytest.fixture
def registered(monkeypatch):
    """Forgets after a test what it registered."""
    monkeypatch.setattr(attention, "ATTENTIONS", attention.ATTENTIONS.copy())
    for name in [name for name in sys.modules if name.partition(".")[0] == "peers"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(PEERS)


@pytest.mark.parametrize("kind", ["full", "scattered"])
@each(CASES)
def test_a_peers_output_and_gradients_are_its_references(registered, name, settings, kind):
    __import__(f"peers.{name}")
    for shape in ((2, 3, 5, 5), (2, 2, 37, 12)):
        check_reference(name, settings, shape, kind, reference=getattr(naive, name))
    counts = attention.pairs(name, *tensors((2, 2, 23, 8))[:2], padding((2, 2, 23, 8), kind), **settings)
    assert counts.any()


@pytest.mark.skipif(not find_spec("lsg_converter"), reason="it is not installed")
def test_lsg_takes_a_budget(registered):
    import peers.lsg  # noqa: F401

    query, key, value = tensors((1, 2, 640, 16))
    out = attention.attend("lsg", query, key, value, share=0.5)
    assert torch.equal(out, attention.attend("lsg", query, key, value, block=64))
    assert not torch.allclose(out, attention.attend("softmax", query, key, value), atol=1e-2)


def test_an_attention_of_ones_own_is_known_to_models_and_saved_with_them(registered, tmp_path):
    """As in docs/attentions.md."""

    @attention.register
    class EveryOther(attention.SparseAttention):
        name = "every-other"
        description = "the even positions, or the odd ones"
        odd: bool = False

        def choose_keys(self, query, key, mask, scaling, generator):
            length = mask.shape[-1]
            position = torch.arange(length).expand_as(mask)
            keys = position.masked_fill(~mask | (position % 2 != self.odd), length)
            return attention.Keys(position[:, :, None, None], keys[:, :, None, None])

    inputs = tensors((1, 2, 9, 4))
    out = attention.attend("every-other", *inputs, odd=True)
    few = [x[:, :, 1::2] for x in inputs[1:]]
    weights = (inputs[0] @ few[0].mT / 2).softmax(-1)
    torch.testing.assert_close(out, weights @ few[1])
    assert run(lambda *x: attention.attend("every-other", *x), inputs, torch.ones_like(out))[1].any()
    assert attention.coverage("every-other", *inputs[:2]).pairs == pytest.approx(5 / 9)

    model = load_model(config_of("bert"), head="base", attention="every-other", settings={"odd": True})
    model.save_pretrained(tmp_path)
    again = load_model(str(tmp_path), head="base")
    with torch.no_grad(), record_passes(again) as passes:
        assert torch.equal(again(**batch())[0], model(**batch())[0])
    assert (passes[0].attention, passes[0].settings["odd"]) == ("every-other", True)
