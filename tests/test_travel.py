"""A model that is saved says the same in another process, whoever loads it there."""

import json
import subprocess
import sys
from pathlib import Path

import torch
from transformers import pipeline

from albert_lsh import load_model, load_tokenizer, switch_attention

LSH = {"n_hashes": 2, "cluster_size": 4}
PAIR = {"text": "The town lies on the northern bank of the river.", "text_pair": "It was founded by a group of monks."}
CONTEXT = "She was born in London in 1882 and studied there before she became a member of the parliament. " * 12
QUESTION = {"question": "Where was she born?", "context": CONTEXT}
MORE = {"n_hashes": 5, "cluster_size": 4}
MADE = {
    "nano": lambda: load_model("nano"),
    "nano-lsh": lambda: load_model("nano-lsh", seed=7),
    "some-passes": lambda: switch_attention(load_model("nano"), "lsh", LSH, 5, passes=[1, 4], evaluation_settings=MORE),
    "reformer": lambda: load_model("nano", attention="reformer", settings={"bucket_size": 4}, seed=3),
    "convolution": lambda: load_model("nano", attention="yoso-e", settings={"conv_kernel_size": 3}),
    "answers": lambda: load_model("nano-lsh", head="question-answering"),
}
OWN_WEIGHTS = ("reformer", "convolution")  # which Transformers' own classes do not know
# In the other process, each is loaded by our own functions and, where these know it, by Transformers' own.
ASK = """
import json, sys
from pathlib import Path
from transformers import pipeline
import albert_lsh
from test_travel import OWN_WEIGHTS, say

said = {}
for folder in map(Path, sys.argv[1:]):
    head = "question-answering" if folder.name == "answers" else "classification"
    said[folder.name] = [say(albert_lsh.load_model(str(folder), head=head), albert_lsh.load_tokenizer(str(folder)))]
    if folder.name not in OWN_WEIGHTS:
        said[folder.name].append(say(str(folder), None, head))
print(json.dumps(said))
"""


def say(model, tokenizer, head=None):
    """What a pipeline says with a model, or with the folder of one."""
    if head == "question-answering" or hasattr(model, "qa_outputs"):
        return pipeline("extractive-question-answering", model=model, tokenizer=tokenizer)(QUESTION)
    return pipeline("text-classification", model=model, tokenizer=tokenizer, top_k=None)(PAIR)


def elsewhere(code, *arguments):
    """What another process prints last, as JSON."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_pipelines_say_the_same_in_another_process(tmp_path):
    said = {}
    for name, make in MADE.items():
        torch.manual_seed(0)
        model, tokenizer = make(), load_tokenizer("nano")
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        said[name] = say(model, tokenizer)
    for name, answers in elsewhere(ASK, *tmp_path.iterdir()).items():
        assert answers == [said[name]] * (1 if name in OWN_WEIGHTS else 2)
    assert len({json.dumps(answer) for answer in said.values()}) == len(MADE)  # or all models might be one
