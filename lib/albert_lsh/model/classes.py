"""Classes that are made of others while a program runs, such that models of them can be pickled.

Pickle finds a class by its module and name, where there is another one. So it keeps the function that made the class,
and what of, and the class is made again where the model is loaded: by `torch.load`, or in a process that is spawned.
"""

import copyreg
from collections.abc import Callable
from functools import wraps
from typing import Any


class Changed(type):
    """The type of such a class; its `recipe` is a function, and its arguments."""

    recipe: tuple[Any, ...]


copyreg.pickle(Changed, lambda changed: (changed.recipe[0], changed.recipe[1:]))  # type: ignore[arg-type]


def changing(methods: Callable[..., dict[str, Any]]) -> Callable[..., Any]:
    """Decorate a function that takes a class, and maybe more, and returns methods: it returns a subclass with these."""

    @wraps(methods)
    def change(base: Any, *args: Any) -> Any:
        attributes = {"__module__": base.__module__, "recipe": (change, base, *args)}
        return Changed(base.__name__, (base,), attributes | methods(base, *args))

    return change
