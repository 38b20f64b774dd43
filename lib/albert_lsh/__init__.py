"""ALBERT with any attention: the library. The study built on it is `albert_study`.

    from albert_lsh import load_model, load_tokenizer
    model = load_model("albert/albert-base-v2", attention="key-clusters", settings={"n_hashes": 4})

Follow the data: `tasks`, `data`, `attention`, `model`, `run`, `train`; to ask a trained model, `predict`. Importing the
package makes its attentions and its pipeline known to Transformers, and so takes as long as importing Transformers'
models.
"""

__version__ = "0.1.0"

from albert_lsh import attention
from albert_lsh.advice import audit
from albert_lsh.data import load_data
from albert_lsh.interface import record_passes
from albert_lsh.model.load import extend_positions, load_model, load_tokenizer, switch_attention
from albert_lsh.model.memory import save_memory
from albert_lsh.model.padding import pad_inputs
from albert_lsh.predict import QuestionAnsweringPipeline
from albert_lsh.run import Run
from albert_lsh.tasks import find_task
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
    "record_passes",
    "save_memory",
    "switch_attention",
]
