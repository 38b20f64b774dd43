"""A model that is saved says the same in another process, whoever loads it there."""

import json
import subprocess
import sys

import pytest
import torch
from transformers import pipeline

from albert_lsh import load_model, load_tokenizer, switch_attention

LSH = {"n_hashes": 2, "cluster_size": 4}
PAIR = {"text": "The town lies on the northern bank of the river.", "text_pair": "It was founded by a group of monks."}
CONTEXT = "She was born in London in 1882 and studied there before she became a member of the parliament. " * 12
QUESTION = {"question": "Where was she born?", "context": CONTEXT}


def lsh_in_some_passes():
    model, evaluated = load_model("nano"), {"n_hashes": 5, "cluster_size": 4}
    return switch_attention(model, "lsh", LSH, seed=5, passes=[1, 4], evaluation_settings=evaluated)


MADE = {
    "nano": lambda: load_model("nano"),
    "nano-lsh": lambda: load_model("nano-lsh", seed=7),
    "some-passes": lsh_in_some_passes,
    "reformer": lambda: load_model("nano", attention="reformer", settings={"bucket_size": 4}, seed=3),
    "convolution": lambda: load_model("nano", attention="yoso-e", settings={"conv_kernel_size": 3}),
    "answers": lambda: load_model("nano-lsh", head="question-answering"),
}
OWN_WEIGHTS = ("reformer", "convolution")  # which Transformers' own classes do not know

ASK = """
import json, sys
from pathlib import Path
import albert_lsh
from transformers import pipeline

pair, question = json.loads(sys.argv[2])
found = {}
for folder in sorted(Path(sys.argv[1]).iterdir()):
    name, path = folder.name, str(folder)
    if name == "sentences":
        from sentence_transformers import SentenceTransformer
        found[name] = SentenceTransformer(path, device="cpu").encode(list(pair.values())).tolist()
    elif name == "answers":
        made = albert_lsh.load_model(path, head="question-answering"), albert_lsh.load_tokenizer(path)
        ours = albert_lsh.QuestionAnsweringPipeline(model=made[0], tokenizer=made[1])(question)
        found[name] = [ours, pipeline("extractive-question-answering", path)(question)]
    else:
        made = {"model": albert_lsh.load_model(path), "tokenizer": albert_lsh.load_tokenizer(path)}
        found[name] = [pipeline("text-classification", **made, top_k=None)(pair)]
        if name not in ("reformer", "convolution"):
            found[name] += [pipeline("text-classification", path, top_k=None)(pair)]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What this process's models say, by name, and what the saved ones say in another process."""
    root, here = tmp_path_factory.mktemp("saved"), {}
    for name, make in MADE.items():
        torch.manual_seed(0)
        model, tokenizer = make(), load_tokenizer("nano")
        for part in (model, tokenizer):
            part.save_pretrained(root / name)
        if name == "answers":
            here[name] = pipeline("extractive-question-answering", model=model, tokenizer=tokenizer)(QUESTION)
        else:
            here[name] = pipeline("text-classification", model=model, tokenizer=tokenizer, top_k=None)(PAIR)
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        pass
    else:
        sentences = switch_attention(SentenceTransformer(str(root / "nano"), device="cpu"), "lsh", LSH, seed=3)
        here["sentences"] = sentences.encode(list(PAIR.values())).tolist()
        sentences.save(str(root / "sentences"))
    command = [sys.executable, "-c", ASK, str(root), json.dumps([PAIR, QUESTION])]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return here, json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", MADE)
def test_pipelines_say_the_same_in_another_process(said, name):
    here, there = said
    assert len(there[name]) == (1 if name in OWN_WEIGHTS else 2)
    assert all(found == here[name] for found in there[name])


def test_so_does_a_sentence_transformer(said):
    pytest.importorskip("sentence_transformers")
    here, there = said
    assert there["sentences"] == here["sentences"]


def test_the_cases_differ(said):
    """Else the same might be said whatever is loaded."""
    here, _ = said
    shown = [json.dumps(here[name]) for name in MADE]
    assert len(set(shown)) == len(shown)
