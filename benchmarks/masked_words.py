"""What a pretrained model loses when its attention is replaced, nothing trained: its own loss on masked words.

    python benchmarks/masked_words.py        writes results/trials/masked-words.csv, in a quarter of an hour

kykim/albert-kor-base, an ALBERT-base that was pretrained on masked words, reads paragraphs of KorQuAD's development set
with 15 % of the tokens masked: first under softmax, then under other attentions at a quarter of the pairs, each with
and without `rest`. Every second paragraph is left for later questions, so what is chosen here is not reported on them.
"""

import pandas as pd
import torch
import torch.nn.functional as F
from datasets import load_dataset
from torch import Tensor

from albert_lsh import attention, load_model, load_tokenizer, switch_attention
from albert_lsh.training.files import repository_root, write_atomically
from albert_lsh.training.record import provenance

MODEL, TEXTS = "kykim/albert-kor-base", "KorQuAD/squad_kor_v1"
LENGTHS, PARAGRAPHS, MASKED_SHARE, SHARE = (64, 128, 256), 48, 0.15, 0.25
ATTENTIONS = ("lsh", "plain-lsh", "window", "random", "top-k")


def paragraphs(tokenizer, length: int) -> Tensor:
    """The first paragraphs of that many tokens, cut there: (paragraphs, length); every second one is skipped."""
    texts = list(dict.fromkeys(load_dataset(TEXTS, split="validation")["context"]))[::2]
    rows = (tokenizer(text, truncation=True, max_length=length)["input_ids"] for text in texts)
    return torch.tensor([row for row in rows if len(row) == length][:PARAGRAPHS])


@torch.no_grad()
def losses(model, tokens: Tensor, hidden: Tensor, masked: int) -> Tensor:
    """Cross-entropy of each hidden token, in nats, in the order of the text."""
    found = []
    for some, where in zip(tokens.split(8), hidden.split(8), strict=True):
        with torch.autocast("cpu", torch.bfloat16, enabled=torch.cpu._is_avx512_bf16_supported()):
            logits = model(some.masked_fill(where, masked)).logits[where]
        found.append(F.cross_entropy(logits.float(), some[where], reduction="none"))
    return torch.cat(found)


def by_paragraph(difference: Tensor, hidden: Tensor) -> tuple[float, float]:
    """Mean over words, and its standard error with paragraphs as units (words of one are not independent)."""
    words = hidden.sum(1)
    sums = torch.stack([part.sum() for part in difference.split(words.tolist())])
    mean = sums.sum() / words.sum()
    residual = sums - mean * words
    return mean.item(), (residual.square().sum().sqrt() / words.sum()).item()


def main() -> None:
    tokenizer, rows = load_tokenizer(MODEL), []
    model = load_model(MODEL, head="masked-lm")
    for length in LENGTHS:
        tokens = paragraphs(tokenizer, length)
        hidden = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(0)) < MASKED_SHARE
        hidden[:, 0] = hidden[:, -1] = False  # special tokens
        softmax = losses(switch_attention(model, "softmax"), tokens, hidden, tokenizer.mask_token_id)
        head_dim = model.config.hidden_size // model.config.num_attention_heads
        for name in ATTENTIONS:
            for rest in (False, True):
                settings = {"share": SHARE, "rest": rest}
                switch_attention(model, name, settings)
                found = losses(model, tokens, hidden, tokenizer.mask_token_id)
                difference, error = by_paragraph(found - softmax, hidden)
                row = {"length": length, "attention": name, "share": SHARE, "rest": rest, "loss": found.mean().item()}
                row |= {"softmax_loss": softmax.mean().item(), "difference": difference, "standard_error": error}
                row |= {"mean_change": (found - softmax).abs().mean().item()}
                row |= {"cost": attention.cost(name, length, head_dim, **settings)}
                rows.append(row | {"words": len(found), "paragraphs": len(tokens)})
                print(rows[-1], flush=True)
    table = pd.DataFrame(rows).assign(seed=0, model=MODEL, **provenance("cpu"))
    write_atomically(repository_root() / "results" / "trials" / "masked-words.csv", table.to_csv(index=False))


if __name__ == "__main__":
    main()
