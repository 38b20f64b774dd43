"""A study's file with a damaged text, or in another encoding: named, or read."""

import json

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from albert_study.study import load_jobs
from wrong_values import REFUSED, answer

CHARACTERS = st.sampled_from([*" :-[]{}&*#|>'\"!%@`,?\n\t\0\ufeff01.é", "<<", "---", "1e400", "!!python/name:os"])
STUDY = {
    "parameters": {"model": "mini", "save_model": True},
    "seeds": [0, 1],
    "switched": {"validation": {"variants": {"few": {"attention": "lsh", "n_hashes": 1}}, "shares": [0.25]}},
    "tasks": {"mini-mrpc": {"max_length": 48, "arms": {"softmax": None, "lsh": {"attention_settings": {"keys": 4}}}}},
    "notebooks": {"a": {"notebook": "reading", "variants": {"few": {"attention": "lsh"}}, "max_length": 64}},
}
GOOD = yaml.safe_dump(STUDY, sort_keys=False)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    root = tmp_path_factory.mktemp("root")
    (root / "studies").mkdir()
    return root


@settings(max_examples=400)
@given(
    st.integers(0, len(GOOD)), st.integers(0, 40), st.lists(CHARACTERS, max_size=6), st.sampled_from(["utf8", "utf16"])
)
def test_a_damaged_study_file_is_named_or_read(repository, start, length, inserted, encoding):
    text = GOOD[:start] + "".join(inserted) + GOOD[start + length :]
    (repository / "studies" / "x.yaml").write_bytes(text.encode(encoding, "replace"))
    jobs = answer(lambda: load_jobs("x", repository), "studies/x.yaml")
    if jobs is not REFUSED:
        json.dumps([job.parameters for job in jobs.values()], allow_nan=False)
