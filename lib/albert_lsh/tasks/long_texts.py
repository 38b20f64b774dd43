"""Texts that are cut before a tokenizer sees them."""

from typing import Any


def shortened(texts: list[str], tokenizer: Any, longest: int) -> list[str]:
    """Texts cut behind their first `longest` tokens."""
    found = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False)["offset_mapping"]
    ends = [offsets[longest - 1][1] if len(offsets) > longest else None for offsets in found]
    return [text[:end] for text, end in zip(texts, ends, strict=True)]


def readable(texts: list[str], tokenizer: Any, max_length: int) -> list[str]:
    """Texts that a tokenizer can cut at max_length: where they are very long, without what it would cut off anyway.

    It puts every piece that it cuts off one text of a pair beside every piece of the other, and runs out of memory.
    """
    most = 8 * max_length
    return [shortened([text], tokenizer, most)[0] if len(text) > most else text for text in texts]
