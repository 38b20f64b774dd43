"""Study files with a damaged text, in another encoding, or with a value that should not be there."""

import contextlib
import json

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from albert_study.jobs import load_jobs
from wrong_values import ODD_TEXTS, REFUSED, answer

CHARACTERS = st.sampled_from(
    [*" :-[]{}&*#|>'\"!%@`,?\n\t\0\ufeff\u202e01.é", "<<", "---", "null", "seeds", "1e400", "!!python/name:os"]
)
STUDY = {
    "parameters": {"model": "mini", "save_model": True},
    "seeds": [0, 1],
    "switched": {"validation": {"variants": {"few": {"attention": "lsh", "n_hashes": 1}}, "shares": [0.25]}},
    "tasks": {"mini-mrpc": {"max_length": 48, "arms": {"softmax": None, "lsh": {"attention_settings": {"keys": 4}}}}},
    "notebooks": {"a": {"notebook": "reading", "variants": {"few": {"attention": "lsh"}}, "max_length": 64}},
}
STEPS = ["parameters", "seeds", "tasks", "arms", "switched", "notebooks", "notebook", "variants", "shares", "attention"]
GOOD = yaml.safe_dump(STUDY, sort_keys=False)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.sampled_from(ODD_TEXTS[2:]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=6) | st.integers() | st.sampled_from(STEPS), inner, max_size=3)
    ),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """Reads bytes as a study's file: its jobs, or REFUSED with its file named in one message."""
    root = tmp_path_factory.mktemp("root")
    (root / "studies").mkdir()

    def read(content):
        (root / "studies" / "x.yaml").write_bytes(content)
        return answer(lambda: load_jobs("x", root), "studies/x.yaml")

    return read


@settings(max_examples=200)
@given(data=st.data())
def test_a_damaged_study_file_is_named_or_read(read, data):
    """Some characters of a good file are cut out, and others put there."""
    start = data.draw(st.integers(0, len(GOOD)))
    end = data.draw(st.integers(start, min(len(GOOD), start + 40)))
    text = GOOD[:start] + "".join(data.draw(st.lists(CHARACTERS, max_size=6))) + GOOD[end:]
    encoding = data.draw(st.sampled_from(["utf-8", "utf-8", "utf-8", "utf-16", "utf-8-sig", "latin-1"]))
    read(text.encode(encoding, "replace"))


def places(tree, place=()):
    """The places of all values of a study."""
    yield place
    for step, value in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield from places(value, (*place, step))


def changed(tree, place, value):
    """The study with another value at a place."""
    if not place:
        return value
    step, *rest = place
    new = dict(tree) if isinstance(tree, dict) else dict(enumerate(tree))
    new[step] = changed(tree[step], rest, value)
    return new if isinstance(tree, dict) else [*new.values()]


@settings(max_examples=200)
@given(st.lists(st.tuples(st.sampled_from([*places(STUDY)]), PLAIN), min_size=1, max_size=2))
def test_a_study_with_another_value_somewhere_is_named_or_read(read, changes):
    tree = STUDY
    for place, value in changes:
        with contextlib.suppress(KeyError, TypeError, IndexError):  # the first change took the place of the second
            tree = changed(tree, place, value)
    jobs = read(yaml.safe_dump(tree, allow_unicode=False).encode())
    if jobs is not REFUSED:
        json.dumps([job.parameters for job in jobs.values()], allow_nan=False)
