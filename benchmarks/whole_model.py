"""What a whole encoder takes for a long text: all-MiniLM-L6-v2 with several attentions, time and memory by length.

    OMP_NUM_THREADS=1 python benchmarks/whole_model.py                    writes results/efficiency/whole-model.csv
    ... whole_model.py whole-model-intel softmax "key-clusters, 1/4" ...    a table of another name, with these cases
    ... whole_model.py whole-model-modernbert "ModernBERT, softmax" "ModernBERT, sdpa" ...    (of any of CASES)

A forward pass of random tokens in evaluation, float32, with positions repeated up to the length. Cases of a length take
turns in one process. Memory is the peak above that of the model alone, in a process for each case.

The attentions of CASES, LSG and HyperAttention among them, have the model's own weights. Peers that are models of
Transformers have the shape of all-MiniLM-L6-v2 and random weights. On a CPU its YOSO computes the expectation, which
takes matrices of all pairs. ModernBERT has ModernBERT-base's shape and random weights: of its 22 layers 8 are global
and have the case's attention; "sdpa" is its own in all of them.
"""

import json
import statistics
import subprocess
import sys
from typing import Any

import pandas as pd
import torch
from peers import hyper, lsg
from transformers import (
    LongformerConfig,
    LongformerModel,
    ModernBertConfig,
    NystromformerConfig,
    NystromformerModel,
    PreTrainedConfig,
    PreTrainedModel,
    YosoConfig,
    YosoModel,
)

from albert_lsh import load_model, switch_attention
from albert_lsh.files import repository_root, write_atomically
from albert_lsh.model.load import extend_positions
from albert_lsh.record import provenance
from albert_study.experiments.efficiency import Workload, peak_of, seconds_of

MEMORY = "memory"  # the first word to a process that measures one case
MODEL, LENGTHS = "sentence-transformers/all-MiniLM-L6-v2", (512, 1024, 2048, 4096, 8192)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "softmax": ("softmax", {}),
    "key-clusters, 1/4": ("key-clusters", {"share": 0.25}),
    "key-clusters, 1/8": ("key-clusters", {"share": 0.125}),
    "lsh, 1/8": ("lsh", {"share": 0.125}),
    "window, 1/8": ("window", {"share": 0.125}),
    "hyper, 1/8": (hyper.Hyper.name, {"share": 0.125}),
    "nystrom": ("nystrom", {}),
    "LSG, blocks of 128": (lsg.LSG.name, {}),
}
PEERS: dict[str, tuple[type[PreTrainedConfig], Any, dict[str, Any]]] = {
    "Longformer, windows of 512": (LongformerConfig, LongformerModel, {"attention_window": 512}),
    "Nyströmformer": (NystromformerConfig, NystromformerModel, {}),
    "YOSO": (YosoConfig, YosoModel, {}),
}
MODERNBERT, OWN = "ModernBERT, ", "sdpa"
REFORMER = "reformer-pytorch"
LONGEST = {"YOSO": 2048, REFORMER: 4096, MODERNBERT + OWN: 4096}  # longer ones take a minute a pass
SHAPE = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")


def encoder(case: str) -> PreTrainedModel:
    if case.startswith(MODERNBERT):
        model = load_model(ModernBertConfig(), head="base")
        if (name := case.removeprefix(MODERNBERT)) == OWN:
            model.set_attn_implementation(OWN)
            return model
        return switch_attention(model, CASES[name][0], CASES[name][1])
    if case == REFORMER:  # its projections are new
        model = load_model(MODEL, head="base", attention="reformer")
        return extend_positions(model, LENGTHS[-1]).eval()
    model = load_model(MODEL, head="base")
    if case in PEERS:
        kind, peer, settings = PEERS[case]
        shape = {name: getattr(model.config, name) for name in SHAPE}
        return peer(kind(**shape, **settings, max_position_embeddings=LENGTHS[-1] + 2)).eval()
    name, settings = CASES[case]
    return switch_attention(extend_positions(model, LENGTHS[-1]), name, settings=settings).eval()


def fitting(case: str) -> list[int]:
    return [length for length in LENGTHS if length <= LONGEST.get(case, LENGTHS[-1])]


def forward(model: PreTrainedModel, length: int) -> Workload:
    for module in model.modules():
        if hasattr(module, "seq_len"):  # Nyströmformer's landmarks are means over so many tokens
            module.seq_len = length
    ids = torch.randint(1000, 30_000, (1, length), generator=torch.Generator().manual_seed(0))

    @torch.no_grad()
    def run() -> None:
        model(input_ids=ids)

    return run


def memory(case: str) -> list[int]:
    """Peak bytes at each length, in a process of its own."""
    model = encoder(case)
    forward(model, 64)()
    return [peak_of(forward(model, length)) for length in fitting(case)]


def main(name: str = "whole-model", *some: str) -> None:
    peaks, cases = {}, some or (*CASES, REFORMER, *PEERS)
    for case in cases:
        done = subprocess.run([sys.executable, __file__, MEMORY, case], capture_output=True, text=True, check=True)
        peaks[case] = json.loads(done.stdout.splitlines()[-1])
    models, rows = {case: encoder(case) for case in cases}, []
    for number, length in enumerate(LENGTHS):
        fit = {case: forward(model, length) for case, model in models.items() if length in fitting(case)}
        taken = seconds_of(fit, 3)
        for case, seconds in taken.items():
            shape = "ModernBERT-base's shape, random weights" if case.startswith(MODERNBERT) else MODEL
            row = {
                "model": shape,
                "case": case.removeprefix(MODERNBERT),
                "length": length,
                "seconds": statistics.median(seconds),
            }
            rows.append(row | {"bytes": peaks[case][number], "threads": torch.get_num_threads()} | provenance("cpu"))
    path = repository_root() / "results" / "efficiency" / f"{name}.csv"
    write_atomically(path, pd.DataFrame(rows).to_csv(index=False))


if __name__ == "__main__":
    print(json.dumps(memory(sys.argv[2]))) if sys.argv[1:2] == [MEMORY] else main(*sys.argv[1:])
