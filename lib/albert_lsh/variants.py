"""Attentions that are asked one after the other, under names of their own."""

from typing import Any, NamedTuple

from albert_lsh import attention as attentions
from albert_lsh.runs import ParameterError, from_given


class Variant(NamedTuple):
    """An attention with its settings, under a name of its own."""

    label: str
    attention: str
    settings: dict[str, Any]


def list_variants(given: dict[str, Any]) -> list[Variant]:
    """Variants as a notebook or a study names them, their settings completed.

    Args:
        given: {label: {"attention": name, settings ...}}; "share" and "length" among the settings stand for those
            that `attention.settings_for` gives.
    Raises:
        ValueError: no variant, or one that cannot be (the message names it).
    """
    if not given:
        raise ValueError("variants={} must name at least one")
    found = []
    for label, value in given.items():
        settings = dict(value) if isinstance(value, dict) else {}
        name = settings.pop("attention", None)
        try:
            if "share" in settings:
                settings = attentions.settings_for(name, **settings)
            found.append(Variant(label, name, attentions.check(name, settings)))
        except (ValueError, TypeError) as error:
            raise ValueError(f"variants: {label!r}: {error}") from error
    return found


def from_given_with_variants(cls: Any, given: dict[str, Any], notebook: str) -> Any:
    """`from_given` for a dataclass with `variants`; ParameterError says what is wrong with these too."""
    made = from_given(cls, given, notebook)
    try:
        list_variants(made.variants)
    except ValueError as error:
        raise ParameterError(f"{error} ({notebook})") from error
    return made
