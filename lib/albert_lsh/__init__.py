"""ALBERT with any attention: the library. The study built on it is `albert_study`.

    from albert_lsh import load_model, load_tokenizer
    model = load_model("albert/albert-base-v2", attention="lsh", settings={"n_hashes": 4})

Follow the data: `tasks`, `attention`, `model`, `run`, `train`; to ask a trained model, `predict` and `pipelines`.
Each name below is imported when it is first used, so `import albert_lsh` takes no time. Transformers learns of our
attentions as soon as both packages are imported, in either order.
"""

import sys
from functools import wraps
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from albert_lsh import attention
    from albert_lsh.model.load import extend_positions, load_model, load_tokenizer, switch_attention
    from albert_lsh.model.memory import save_memory
    from albert_lsh.model.passes import record_passes
    from albert_lsh.pipelines import QuestionAnsweringPipeline
    from albert_lsh.run import Run
    from albert_lsh.tasks import find_task, load_data
    from albert_lsh.train import fit

__version__ = "0.1.0"
__all__ = [
    "QuestionAnsweringPipeline",
    "Run",
    "attention",
    "extend_positions",
    "find_task",
    "fit",
    "load_data",
    "load_model",
    "load_tokenizer",
    "record_passes",
    "save_memory",
    "switch_attention",
]
_HOMES = {
    "albert_lsh.model.load": ("extend_positions", "load_model", "load_tokenizer", "switch_attention"),
    "albert_lsh.model.passes": ("record_passes",),
    "albert_lsh.model.memory": ("save_memory",),
    "albert_lsh.pipelines": ("QuestionAnsweringPipeline",),
    "albert_lsh.run": ("Run",),
    "albert_lsh.tasks": ("find_task", "load_data"),
    "albert_lsh.train": ("fit",),
}


def __getattr__(name: str) -> Any:
    if name == "attention":
        return import_module("albert_lsh.attention")
    for home, names in _HOMES.items():
        if name in names:
            if name == "load_model":
                import_module("albert_lsh.pipelines")  # gives Transformers our question-answering pipeline
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'albert_lsh' has no attribute {name!r}")


class _Registration(MetaPathFinder):
    """Registers our attentions when Transformers makes its first model."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "transformers.modeling_utils":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        loader: Any = spec and spec.loader
        execute = loader.exec_module

        def execute_and_register(module: Any) -> None:
            execute(module)
            init = module.PreTrainedModel.__init__

            @wraps(init)
            def init_first(model: Any, *args: Any, **kwargs: Any) -> None:
                if "albert_lsh.model.interface" in sys.modules:
                    return init(model, *args, **kwargs)
                module.PreTrainedModel.__init__ = init
                import_module("albert_lsh.model.interface")  # by now imports of our own are over
                return module.PreTrainedModel.__init__(model, *args, **kwargs)

            module.PreTrainedModel.__init__ = init_first

        loader.exec_module = execute_and_register
        return spec


if "transformers.modeling_utils" in sys.modules:
    import_module("albert_lsh.model.interface")
else:
    sys.meta_path.insert(0, _Registration())
