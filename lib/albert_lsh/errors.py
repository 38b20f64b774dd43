"""What all errors of ours have in common that a user can mend."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class OneLineError(ValueError):
    """An error whose message says all; in a notebook it is shown without the traceback."""

    def _render_traceback_(self) -> list[str]:  # IPython asks for it
        return [f"{type(self).__name__}: {self}"]


@contextmanager
def explain_out_of_memory(less: str) -> Iterator[None]:
    """Turn a failed allocation into a ValueError that says what takes `less`."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        # On the CPU torch raises a plain RuntimeError.
        known = isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)
        if not known:
            raise
        raise ValueError(f"out of memory; {less} takes less") from error
