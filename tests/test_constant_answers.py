"""What always giving the same answer scores, beside the original's scores."""

import pytest
from datasets import Dataset

from albert_lsh import find_task
from albert_lsh.run import ParameterError
from albert_study.evidence.constant_answers import Constant, beside_the_original, constant_answers, write_constants


def test_sst2s_published_score_is_that_of_a_constant():
    rows = Dataset.from_dict({"sentence": ["a"] * 872, "label": [1] * 444 + [0] * 428})
    table = beside_the_original(constant_answers(find_task("sst2"), "validation", rows)).set_index("answer")
    assert table["right"].to_dict() == {"negative": 428, "positive": 444}
    assert table["same"].to_dict() == {"negative": False, "positive": True}
    assert table["between"].to_dict() == {"negative": 16, "positive": 0}


def test_squad_2s_published_score_is_that_of_never_answering():
    answers = [{"text": ["x"], "answer_start": [0]}] * 5928 + [{"text": [], "answer_start": []}] * 5945
    rows = Dataset.from_dict({"id": [str(n) for n in range(11873)], "answers": answers})
    table = beside_the_original(constant_answers(find_task("squad-v2"), "validation", rows)).set_index("metric")
    assert table.loc["f1", ["right", "same", "between"]].tolist() == [5945, True, 0]


def test_the_table_of_an_embedded_task_has_no_original(tmp_path):
    table = write_constants(Constant.check({"tasks": ["mini-mrpc"], "results_root": str(tmp_path)}))
    assert table.empty
    with pytest.raises(ParameterError, match="tasks: 'stsb' predicts a number"):
        Constant.check({"tasks": ["stsb"]})
