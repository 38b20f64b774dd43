"""What importing the package costs, and that Transformers knows our attentions all the same."""

import json
import os
import subprocess
import sys

import pytest

import albert_lsh

HEAVY = ["torch._dynamo", "torch._inductor", "sklearn", "scipy", "pandas", "pyarrow", "datasets", "matplotlib"]
HEAVY += ["accelerate", "transformers.modeling_utils", "transformers.trainer"]


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


KNOWN = "; print('albert_lsh' in transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS)"


def test_the_package_is_imported_without_what_only_its_parts_need_and_transformers_knows_it_later():
    code = f"import sys, albert_lsh; print([name for name in {HEAVY} if name in sys.modules])"
    assert python(f"{code}; import transformers.modeling_utils{KNOWN}").splitlines() == ["[]", "True"]


def test_transformers_knows_the_package_that_comes_later():
    assert python(f"import transformers.modeling_utils, albert_lsh{KNOWN}") == "True"


def test_every_public_name_is_there_and_another_is_not():
    assert all(getattr(albert_lsh, name) is not None for name in albert_lsh.__all__)
    assert callable(albert_lsh.audit)  # and not the module of that name
    with pytest.raises(AttributeError, match="module 'albert_lsh' has no attribute 'load_modl'"):
        albert_lsh.load_modl  # noqa: B018


def printed(code, encoding, folder="."):
    """What a process prints in a terminal of that encoding."""
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode(encoding)


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_what_a_terminal_cannot_show_is_an_escape(encoding):
    """That of JSON, which is still JSON."""
    code = "import albert_lsh, json; print(json.dumps(['부정 😀', '¼', '\\ud800'], ensure_ascii=False))"
    assert json.loads(printed(code, encoding)) == ["부정 😀", "¼", "\ud800"]


def test_predict_says_a_class_that_the_terminal_cannot_show(tmp_path):
    code = r"""
from albert_lsh import load_model, load_tokenizer
from albert_lsh.predict import main
load_model("nano", id2label={0: "부정", 1: "긍정"}, label2id={"부정": 0, "긍정": 1}).save_pretrained("model")
load_tokenizer("nano").save_pretrained("model")
rows = "".join(f"text {n},{'긍정' if n % 2 else '부정'}\n" for n in range(20))
open("own.csv", "w", encoding="utf-8").write("text,label\n" + rows)
open("new.txt", "w").write("a text\n")
main(["predict", "--model", "model", "--task", "own.csv", "new.txt"])
"""
    assert {*json.loads(printed(code, "cp1252", tmp_path))["scores"]} == {"부정", "긍정"}


def test_a_studys_tables_are_shown_in_a_terminal_that_is_not_utf_8():
    code = "from albert_study.execute import summary; print(summary('minilm'))"
    assert r"\u00b1" in printed(code, "ascii")  # plus or minus
