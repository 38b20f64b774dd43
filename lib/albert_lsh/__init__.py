"""ALBERT with any attention: the library. The study that is built on it is `albert_study`.

In the order in which data flows: `tasks`, `attention`, `model`, `training`; what a trained model says about other
texts: `predict`, `pipelines`.
"""

from albert_lsh import attention
from albert_lsh.model.load import extend_positions, load_model, load_tokenizer, switch_attention
from albert_lsh.model.passes import record_passes
from albert_lsh.pipelines import QuestionAnsweringPipeline

__all__ = [
    "QuestionAnsweringPipeline",
    "attention",
    "extend_positions",
    "load_model",
    "load_tokenizer",
    "record_passes",
    "switch_attention",
]
