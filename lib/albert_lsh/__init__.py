"""ALBERT with any attention: the library. The study built on it is `albert_study`.

    from albert_lsh import load_model, load_tokenizer
    model = load_model("albert/albert-base-v2", attention="key-clusters", settings={"n_hashes": 4})

Follow the data: `tasks`, `data`, `attention`, `model`, `run`, `train`; to ask a trained model, `predict`. Importing the
package takes little longer than importing torch: each name is imported when it is used first, and Transformers knows
our attentions and our pipeline as soon as it has imported its models, or its pipelines. From then on a terminal that is
not UTF-8 is shown JSON's escape of a character that it lacks, by whatever is printed, where Python would stop.
"""

__version__ = "0.1.0"

import codecs
import json
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING, Any

from albert_lsh import attention
from albert_lsh.audit import audit

if TYPE_CHECKING:
    from albert_lsh.data import load_data
    from albert_lsh.interface import record_passes
    from albert_lsh.model.load import extend_positions, load_model, load_tokenizer, switch_attention
    from albert_lsh.model.memory import recompute_activations
    from albert_lsh.model.padding import pad_inputs
    from albert_lsh.pipeline import QuestionAnsweringPipeline
    from albert_lsh.run import Run
    from albert_lsh.sources import find_task
    from albert_lsh.train import fit

__all__ = [
    "QuestionAnsweringPipeline",
    "Run",
    "attention",
    "audit",
    "extend_positions",
    "find_task",
    "fit",
    "load_data",
    "load_model",
    "load_tokenizer",
    "pad_inputs",
    "recompute_activations",
    "record_passes",
    "switch_attention",
]
PLACES = {"QuestionAnsweringPipeline": "pipeline", "Run": "run", "find_task": "sources", "fit": "train"}
PLACES |= {"load_data": "data", "recompute_activations": "model.memory", "pad_inputs": "model.padding"}
PLACES |= {"record_passes": "interface"} | dict.fromkeys(
    ("extend_positions", "load_model", "load_tokenizer", "switch_attention"), "model.load"
)
REGISTERING = {"transformers.modeling_utils": "interface", "transformers.pipelines": "pipeline"}  # ours, after it


def __getattr__(name: str) -> Any:
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(f"{__name__}.{PLACES[name]}"), name)
    return value


class Registering:
    """Finds the modules of Transformers that ours register with, and lets ours be imported after them."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in REGISTERING else None
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                import_module(f"{__name__}.{REGISTERING[name]}")

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def escaped(error: Any) -> tuple[str, int]:
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


codecs.register_error("albert-lsh", escaped)
if getattr(sys.stdout, "errors", None) in ("strict", "surrogateescape") and hasattr(sys.stdout, "reconfigure"):
    sys.stdout.reconfigure(errors="albert-lsh")
sys.meta_path.insert(0, Registering)  # type: ignore[arg-type]
for module in REGISTERING.keys() & sys.modules.keys():
    import_module(f"{__name__}.{REGISTERING[module]}")
