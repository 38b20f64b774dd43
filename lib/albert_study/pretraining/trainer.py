"""Hugging Face's Trainer with ALBERT's two objectives (Lan et al. 2020): masked tokens, and the order of two segments.

The loss is the mean over all masked tokens of a step plus the mean over its examples, counted over all devices and
accumulated batches: two devices with half of the batch each compute the same as one with all of it.
"""

from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, SequentialSampler, Subset
from transformers import Trainer

from albert_study.pretraining.objectives import IGNORED


class PretrainingTrainer(Trainer):
    """Trainer with ALBERT's two losses; only masked tokens go through the prediction head."""

    model: Any
    eval_dataset: Any

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.model_accepts_loss_kwargs = True  # Trainer counts the masked tokens of a whole step, over devices too
        self.wanted: torch.Tensor | None = None
        self.model.predictions.register_forward_pre_hook(
            lambda _, given: None if self.wanted is None else (given[0][self.wanted],)
        )

    def _get_train_sampler(self, train_dataset: Any = None):
        return SequentialSampler(train_dataset)  # the examples are shuffled already

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        self.accelerator.wait_for_everyone()  # each process has written its own before the checkpoint counts

    def predict_both(self, model, inputs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        """Logits of the masked tokens (n, vocabulary) and of the order (batch, 2), float32, each with its labels."""
        labels, order = inputs.pop("labels"), inputs.pop("sentence_order_label")
        self.wanted = labels != IGNORED
        out = model(**inputs)
        self.wanted = None
        return out.prediction_logits.float(), labels[labels != IGNORED], out.sop_logits.float(), order

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        devices, arguments = self.accelerator.num_processes, self.args
        masked, labels, order, order_labels = self.predict_both(model, inputs)
        examples = arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps * devices
        loss = F.cross_entropy(masked, labels, reduction="sum") / num_items_in_batch
        loss = loss + F.cross_entropy(order, order_labels, reduction="sum") / examples
        return loss * devices  # whose gradients are averaged

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Held-out loss (nats per masked token) and accuracies of both objectives, over all devices."""
        rank, devices = self.accelerator.process_index, self.accelerator.num_processes
        mine = self.score_each(range(rank, len(self.eval_dataset), devices))
        sums = torch.tensor([*mine.sum(), len(mine)], dtype=torch.float64, device=self.accelerator.device)
        tokens, lost, hits, right, examples = self.accelerator.reduce(sums, "sum").tolist()
        metrics = {"mlm_loss": lost / tokens, "mlm_accuracy": hits / tokens, "sop_accuracy": right / examples}
        metrics = {f"eval_{name}": value for name, value in metrics.items()}
        self.log(dict(metrics))  # to which it adds
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    @torch.no_grad()
    def score_each(self, numbers: range) -> pd.DataFrame:
        """One row per held-out sequence: masked tokens, their summed loss, how many were found; the order found."""
        loader = DataLoader(
            Subset(self.eval_dataset, numbers), self.args.per_device_eval_batch_size, collate_fn=self.data_collator
        )
        self.model.eval()
        rows = []
        for batch in loader:
            row_of_token = (batch["labels"] != IGNORED).nonzero()[:, 0]
            with self.compute_loss_context_manager(), self.accelerator.autocast():
                masked, labels, order, order_labels = self.predict_both(self.model, self._prepare_inputs(batch))
            lost = F.cross_entropy(masked, labels, reduction="none").double()
            columns = {"tokens": torch.ones_like(lost), "lost": lost, "found": (masked.argmax(-1) == labels).double()}
            tokens = pd.DataFrame({name: column.cpu().numpy() for name, column in columns.items()})
            sequences = tokens.groupby(row_of_token.numpy()).sum()  # each has a masked token
            rows.append(sequences.assign(order=(order.argmax(-1) == order_labels).double().cpu().numpy()))
        return pd.concat(rows, ignore_index=True)
