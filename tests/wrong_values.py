"""What nobody should give: values for hypothesis to draw from, and what has to come of them."""

from collections.abc import Callable
from functools import reduce
from typing import Any

from hypothesis import strategies as st

REFUSED = object()


def answer(call: Callable[[], Any], *named: str) -> Any:
    """What a call returns, or REFUSED if it raises a ValueError whose message has one of `named`.

    Any other exception, a bare KeyError or TypeError from inside among them, fails the test.
    """
    try:
        return call()
    except ValueError as error:
        said = str(error)
    assert any(name in said for name in named), f"{said} names none of {named}"
    return REFUSED


ODD_NUMBERS = [0, -1, 1, 2, 3, 2**31, 2**32, 2**63, 2**64, -(2**63) - 1, 10**400, True, False, 0.0, -0.0, 0.5, 1.0, 2.5]
ODD_NUMBERS += [1e308, 5e-324, float("nan"), float("inf"), float("-inf"), 1 + 2j]
DEEP = reduce(lambda inner, _: [inner], range(200), [])  # [[[...]]]
ODD_TEXTS = ["", " ", "\x00", "\ud800", "nan", "1e400", "-1", "0", "None", "null", "True", "../x", "/", "{", "[1"]
ODD_TEXTS += ["１２", "a" * 10_000, "\u202eright to left", "a\nb", "~", "$HOME", "1" * 5000]
TEXTS = st.sampled_from(ODD_TEXTS) | st.text(max_size=8)
SCALARS = st.none() | st.sampled_from(ODD_NUMBERS) | st.integers() | st.floats() | TEXTS | st.binary(max_size=4)
KEYS = TEXTS | st.integers(-2, 2) | st.none() | st.tuples(st.text(max_size=2))
VALUES = st.recursive(
    SCALARS | st.sampled_from([DEEP, {1, 2}, object, range(3)]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=4,
)
