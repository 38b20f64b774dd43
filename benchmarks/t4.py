"""What fine-tuning ALBERT-base with the notebooks' defaults keeps in memory, counted, beside the 16 GB of Colab's T4.

    OMP_NUM_THREADS=1 python benchmarks/t4.py      writes results/reliability/t4.csv, in a minute or two, on a CPU
    make refresh                                   (docs/running.md quotes it)

Counted are the bytes that autograd keeps for the backward pass, each storage once, the weights apart, of a forward pass
of ALBERT-base's shape (random weights) without padding: of the longest batch that can come. Two small batches are
counted; the rest is a straight line. In bf16 autocast, whose numbers have fp16's size, and in float32, which is a
ceiling: on a GPU autocast keeps some in float32 that it keeps in bf16 on a CPU. And what has the size of the weights:
they, their gradients, AdamW's two moments. What a step needs for a moment only, CUDA itself and the allocator's gaps
come on top.
"""

from multiprocessing import get_context
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from transformers import AlbertConfig

from albert_lsh import load_model
from albert_lsh.files import repository_root, write_atomically
from albert_lsh.record import provenance
from albert_lsh.run import usual_recipe

BASE: dict[str, Any] = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
BASE |= {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}  # as in albert/albert-base-v2
CASES = {  # what the notebooks leave open, their recipe says
    "glue.ipynb": ("mrpc", "classification", {}),
    "compare.ipynb": ("mrpc", "classification", {"max_length": 64}),
    "squad.ipynb": ("squad", "question-answering", {}),
}
ATTENTIONS = ("softmax", "reformer", "key-clusters")  # with their own settings; key-clusters with a share keeps as much
COUNTED = (1, 2)  # examples
AT_ONCE = 4  # weights, gradients, and AdamW's moments, in float32


def bytes_kept(model: torch.nn.Module, batch: dict[str, Tensor], precision: str) -> int:
    """What a forward pass keeps for the backward pass."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, Any] = {}  # storages, held so that no address comes twice

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage
        return tensor

    keep = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with keep, torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        model(**batch)
    total = sum(storage.nbytes() for address, storage in kept.items() if address not in weights)
    kept.clear()
    return total


def batch_of(size: int, length: int, head: str) -> dict[str, Tensor]:
    ids, zeros = torch.randint(5, 30_000, (size, length)), torch.zeros(size, dtype=torch.long)
    names = ["start_positions", "end_positions"] if head == "question-answering" else ["labels"]
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **dict.fromkeys(names, zeros)}


def row_of(notebook: str, name: str, precision: str) -> dict[str, Any]:
    task, head, changes = CASES[notebook]
    recipe = usual_recipe(task, "albert/albert-base-v2") | changes
    size, length = recipe["batch_size"], recipe["max_length"]
    torch.manual_seed(0)
    model = load_model(AlbertConfig(**BASE), head=head, attention=name).train()
    few, more = (bytes_kept(model, batch_of(n, length, head), precision) for n in COUNTED)
    kept = few + (more - few) * (size - COUNTED[0]) // (COUNTED[1] - COUNTED[0])
    weights = AT_ONCE * sum(parameter.nbytes for parameter in model.parameters())
    row = {"notebook": notebook, "attention": name, "batch_size": size, "max_length": length, "precision": precision}
    print(row, f"{kept / 1e9:.2f} GB", flush=True)
    return {**row, "activations_gb": kept / 1e9, "weights_gb": weights / 1e9, "sum_gb": (kept + weights) / 1e9}


def main() -> None:
    cases = [(n, a, p) for n in CASES for a in ATTENTIONS for p in ("bf16", "fp32")]
    with get_context("fork").Pool(1, maxtasksperchild=1) as pool:  # reformer's tensors outlive their use
        rows = pool.starmap(row_of, cases, chunksize=1)
    table = pd.DataFrame(rows).assign(seed=0, **provenance("cpu"))
    text = table.to_csv(index=False, float_format="%.3f")
    write_atomically(repository_root() / "results" / "reliability" / "t4.csv", text)


if __name__ == "__main__":
    main()
