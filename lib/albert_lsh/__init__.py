"""ALBERT with any attention: the library behind the notebooks of this study.

In the order in which data flows: tasks (`tasks`, `mini`, `squad`, `metrics`), the model and its attention (`model`,
`attention`), training (`training`), run records (`runs`), studies (`study`), tables and figures (`tables`, `figures`).
What a trained model says about other texts: `predict`, `pipelines`.
"""

from albert_lsh import attention
from albert_lsh.model import load_model, switch_attention
from albert_lsh.passes import record_passes
from albert_lsh.pipelines import QuestionAnsweringPipeline

__all__ = ["QuestionAnsweringPipeline", "attention", "load_model", "record_passes", "switch_attention"]
