"""What importing the package costs, and that Transformers knows our attentions all the same."""

import subprocess
import sys

import pytest

import albert_lsh

HEAVY = ["torch._dynamo", "torch._inductor", "sklearn", "scipy", "pandas", "pyarrow", "datasets", "matplotlib"]
HEAVY += ["accelerate", "transformers.modeling_utils", "transformers.trainer"]


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_the_package_is_imported_without_what_only_its_parts_need():
    assert python(f"import sys, albert_lsh; print(*[name for name in {HEAVY} if name in sys.modules])") == ""


@pytest.mark.parametrize(
    "order", ["import albert_lsh, transformers.modeling_utils", "import transformers.modeling_utils, albert_lsh"]
)
def test_transformers_knows_our_attentions_whichever_comes_first(order):
    code = f"{order}\nfrom transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS\n"
    assert python(code + "print('albert_lsh' in ALL_ATTENTION_FUNCTIONS)") == "True"


def test_every_public_name_is_there_and_another_is_not():
    assert all(getattr(albert_lsh, name) is not None for name in albert_lsh.__all__)
    assert callable(albert_lsh.audit)  # and not the module of that name
    with pytest.raises(AttributeError, match="module 'albert_lsh' has no attribute 'load_modl'"):
        albert_lsh.load_modl  # noqa: B018
