"""Attentions of one's own and of others: registered by one public function, and then known everywhere."""

import math
import re
import sys
from importlib.util import find_spec

import pytest
import torch

from albert_lsh import attention, load_model, record_passes
from attention_cases import check_reference, each, padding, run, tensors
from checkouts import ROOT
from encoders import batch, config_of
from references import peers as naive

PEERS = ROOT / "benchmarks"
CASES = [
    ("hyper", {"cluster_size": 5, "sample_size": 7}),
    ("hyper", {"share": 0.4}),
    ("linear", {}),
]


@pytest.fixture
def registered(monkeypatch):
    """Forgets after a test what it registered."""
    monkeypatch.setattr(attention, "ATTENTIONS", attention.ATTENTIONS.copy())
    for name in [name for name in sys.modules if name.partition(".")[0] in ("peers", "ideas")]:
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


@pytest.mark.parametrize("nodes", [1, 3, 64])
def test_means_of_unseen_nodes_are_those_of_a_walk_down_the_tree(registered, nodes):
    """A node none of whose clusters a query sees is one key more; of other nodes the halves are asked."""
    import ideas

    query, key, value = tensors((1, 1, 50, 8))
    sizes = {"n_hashes": 2, "cluster_size": 6, "mean_key": True}  # nine clusters: halves of unlike sizes
    chosen = attention.make("key-clusters", sizes).keys_for(query, key, None, None)
    clusters = [cluster[cluster < 50] for cluster in chosen.members[0, 0]]
    seen = attention.pairs("key-clusters", query, key, **sizes)[0, 0] > 0
    out = attention.attend("node-means", query, key, value, nodes=nodes, **sizes)[0, 0]

    def unseen(i, first, last):
        members = torch.cat(clusters[first:last])
        if not seen[i, members].any():
            return [members]
        half = first + 2 ** (last - first - 1).bit_length() // 2
        return [] if last - first == 1 else unseen(i, first, half) + unseen(i, half, last)

    (q, k, v), scaling = (x[0, 0] for x in (query, key, value)), 8**-0.5
    for i in range(50):
        nodes_left = unseen(i, 0, len(clusters))
        nodes_left.sort(key=lambda m: -float(q[i] @ k[m].mean(0) * scaling + math.log(len(m))))
        kept = nodes_left[:nodes] + ([torch.cat(nodes_left[nodes:])] if nodes_left[nodes:] else [])
        keys = torch.stack([*k[seen[i]], *(k[m].mean(0) for m in kept)])
        values = torch.stack([*v[seen[i]], *(v[m].mean(0) for m in kept)])
        counts = torch.tensor([1.0] * int(seen[i].sum()) + [float(len(m)) for m in kept])
        expected = (q[i] @ keys.T * scaling + counts.log()).softmax(0) @ values
        torch.testing.assert_close(out[i], expected, atol=2e-6, rtol=1e-5)
    assert ideas.NodeMeans.name in attention.names()


def test_an_attention_of_ones_own_is_known_to_models_and_saved_with_them(registered, tmp_path):
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


def test_the_example_of_the_page_on_attentions_runs(registered):
    blocks = re.findall("```python\n(.*?)```", (ROOT / "docs" / "attentions.md").read_text(), re.DOTALL)
    (example,) = (block for block in blocks if "attention.register" in block)
    exec(example, names := {})
    with torch.no_grad(), record_passes(names["model"]) as passes:
        assert names["model"](**batch())[0].isfinite().all()
    assert passes[0].settings == {"bias": -3.0}
