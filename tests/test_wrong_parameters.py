"""Parameters, settings and study files as nobody should write them: named and refused, or read as they are meant."""

import json
import math
from unittest.mock import Mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from albert_lsh import attention, load_model, switch_attention
from albert_lsh.files import OneLineError
from albert_lsh.run import ParameterError, Run
from albert_study.experiments.efficiency import Efficiency
from albert_study.experiments.long_recipe import LongRange
from albert_study.experiments.pretrain_recipe import Pretraining
from albert_study.experiments.words import BagOfWords, ConstantAnswers, write_constants
from albert_study.probe.paragraphs import Reading, measure_reading
from albert_study.study import NOTEBOOKS, job_of_notebook
from wrong_values import KEYS, REFUSED, TEXTS, VALUES, answer

SETTINGS = sorted({setting for known in attention.ATTENTIONS.values() for setting in known.defaults})
NAMES = st.sampled_from(attention.names())
GIVEN = st.dictionaries(st.sampled_from(SETTINGS) | KEYS, VALUES | st.integers(1, 9), max_size=3)


def may_be(name, settings):
    """Whether a whole set of settings is of the kinds and in the ranges that docs/attentions.md promises."""
    for setting, value in settings.items():
        if setting == "share" and value is not None:
            assert 0 < value <= 1
        elif value is not None and not isinstance(value, bool):
            assert type(value) is int
            assert 0 <= value < 2**31


@settings(max_examples=400)
@given(NAMES | VALUES, GIVEN | VALUES)
def test_settings_are_named_or_complete(name, given):
    found = answer(lambda: attention.check(name, given), "attention", f"{name}: ")
    if found is not REFUSED:
        assert found.keys() == attention.ATTENTIONS[name].defaults.keys()
        may_be(name, found)


@settings(max_examples=200)
@given(NAMES, VALUES | st.integers(1, 4000), VALUES | st.floats(0, 1), VALUES | st.integers(1, 64), GIVEN)
def test_a_budget_is_named_or_spent(name, length, share, keys, fixed):
    fixed = {str(key): value for key, value in fixed.items() if key not in ("share", "keys")}
    named = (f"{name}", "length=", "budget: share=", "budget: keys=")
    found = answer(lambda: attention.settings_for(name, length, share, keys=keys, **fixed), *named)
    if found is not REFUSED:
        may_be(name, found)


@settings(max_examples=150)
@given(NAMES, VALUES | st.integers(1, 10**6), VALUES | st.integers(1, 256), GIVEN)
def test_a_cost_is_a_number_or_its_arguments_are_named(name, length, head_dim, fixed):
    fixed = {str(key): value for key, value in fixed.items()}
    found = answer(lambda: attention.cost(name, length, head_dim, **fixed), name, "length=", "head_dim=")
    assert found is REFUSED or (found > 0 and math.isfinite(found))


PARAMETERS = st.sampled_from(
    ["task", "tasks", "variants", "model", "max_length", "share", "shares", "seed", "only", "lengths", "cases",
     "precision", "device", "attention", "steps", "start", "attention_settings", "text", "output_dir", "output",
     "split", "examples", "trained", "folds"]
)  # fmt: skip
WITH_VARIANTS = ("reading", "masked_words", "fidelity", "long_range")


@settings(max_examples=800)
@given(st.dictionaries(st.sampled_from(sorted(Run.model_fields)) | KEYS, VALUES, min_size=1, max_size=3))
@example({0: None})
@example({"model": "a" * 10_000})
@example({"results_root": "\0"})
@example({"output_dir": "\ud800"})
def test_whatever_is_given_is_named_or_can_be_recorded(change):
    names = [shown for name in change for shown in (str(name), repr(name))]
    run = answer(
        lambda: Run.parse({"task": "mini-mrpc", "attention": "key-clusters", **change}),
        *names,
        "attention 'key-clusters'",
    )
    if run is not REFUSED:
        json.dumps(run.identity(), allow_nan=False)


@settings(max_examples=200)
@given(st.sampled_from(sorted(NOTEBOOKS)) | TEXTS, st.dictionaries(PARAMETERS | KEYS, VALUES, max_size=3))
def test_other_notebooks_name_their_parameters(notebook, given):
    """Each is asked as a study's file would."""
    values = {"variants": {"few": {"attention": "key-clusters"}}} if notebook in WITH_VARIANTS else {}
    values |= {str(key): value for key, value in given.items() if key not in ("label", "notebook")}
    answer(lambda: job_of_notebook("a", notebook, **values), f"{notebook}.ipynb", "notebook=", "is not in results/")


FEW = {"few": {"attention": "key-clusters"}}
LISTS, TIMES = {"lengths": [128], "cases": ["softmax"]}, {"step_lengths": [], "step_cases": [], "keys": 64}
GOOD = {
    Reading: {"variants": FEW},
    LongRange: {"task": "text"},
    Efficiency: {**LISTS, **TIMES, "repeats": 1, "memory": False, "output_dir": "results/e"},
}
NOT_FOR_THESE = [
    (Reading, {"task": "mrpc"}, "task='mrpc' has no paragraphs; squad, squad-v2 and mini-squad have"),
    (
        LongRange,
        {"task": "lists"},
        r"task='lists' must be 'duplication', 'listops' or 'text' \(long_range.ipynb\)",
    ),
    (LongRange, {"task": "duplication", "max_length": 33}, "max_length=33 must be even"),
    (LongRange, {"variants": {"a": {"attention": "lhs"}}}, "variants: 'a': attention='lhs' is not one of"),
    (LongRange, {"evaluate": {"a": {"attention": "key-clusters", "hashes": 2}}}, "variants: 'a': .*hashes"),
    (LongRange, {"variants": {"a/b": {"attention": "key-clusters"}}}, "variants: 'a/b' cannot be the name of a folder"),
    (
        LongRange,
        {"only": ["reformer"]},
        "only: 'reformer' is not one of the variants: softmax, shared-qk-lsh, key-clusters",
    ),
    (Pretraining, {"size": "tiny"}, "size='tiny' must be 'nano', 'small', 'bert-small'.*pretrain.ipynb"),
    (Pretraining, {"attention": "reformer"}, "to pretrain take shared-qk-lsh"),
    (Pretraining, {"start": "somewhere", "tokenizer": "nano"}, "has a tokenizer of its own"),
    (Efficiency, {"cases": ["lhs"]}, "cases: 'lhs' is not one of: softmax"),
    (Efficiency, {"cases": ["key-clusters"]}, "cases must have 'softmax', with which the others are compared"),
    (Efficiency, {"step_lengths": [64], "step_cases": ["key-clusters"]}, "step_cases must have 'softmax'"),
    (Efficiency, {"lengths": [100]}, "100 is no power of two"),
    (Efficiency, {"device": "cuda", "memory": True}, "memory=True needs device='cpu', not 'cuda'"),
    (ConstantAnswers, {"tasks": ["stsb"]}, "tasks: 'stsb' predicts a number"),
    (BagOfWords, {"tasks": ["squad"]}, "'squad' asks for a span"),
]


@pytest.mark.parametrize(("kind", "change", "message"), NOT_FOR_THESE)
def test_what_another_notebook_cannot_do_is_named_before_it_begins(kind, change, message):
    """Of a comparison, when its runs are listed."""
    with pytest.raises(ParameterError, match=message):
        getattr(kind.parse(GOOD.get(kind, {}) | change), "runs", list)()


@pytest.mark.parametrize(
    ("work", "settings", "instead"),
    [
        (measure_reading, Reading.parse({"variants": FEW}), 'task="mini-squad", model="mini"$'),
        (write_constants, ConstantAnswers.parse({"tasks": ["mrpc"]}), r'tasks=\["mini-mrpc"\]$'),
    ],
)
def test_without_a_network_the_error_says_what_to_set(monkeypatch, work, settings, instead):
    monkeypatch.setattr("albert_lsh.tasks.load_dataset", Mock(side_effect=ConnectionError("no network")))
    with pytest.raises(OneLineError, match=f"without a network set {instead}"):
        work(settings)


CHOSEN = load_model("mini")


@settings(max_examples=260)
@given(NAMES | VALUES, GIVEN | VALUES, VALUES | st.integers(0, 9), VALUES | st.lists(st.integers(0, 1)))
def test_a_models_choice_is_named_or_kept(name, settings, seed, passes):
    named = ("attention", f"{name}: ", "seed=", "passes", "reformer")
    found = answer(lambda: switch_attention(CHOSEN, name, settings, seed, passes), *named)
    if found is not REFUSED:
        kept = CHOSEN.config.albert_lsh
        json.dumps(kept, allow_nan=False)
        may_be(name, kept["settings"])
        assert kept["seed"] == seed
