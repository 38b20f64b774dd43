"""Numbers as README and figures show them; report/numbers.typ does the same in the report.

The decimal number that a table holds is rounded, half away from zero. Python's formats round its nearest binary
fraction, which makes 58.6 of 58.65.
"""

from decimal import ROUND_HALF_UP, Decimal


def rounded(value: float | Decimal, digits: int = 0) -> str:
    """The number with so many decimals; a zero has no sign."""
    shown = Decimal(str(value)).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
    return f"{shown if shown else abs(shown):f}"


def percent(share: float, digits: int = 0) -> str:
    """A share as a percentage: 0.125 is "13%", with one decimal "12.5%"."""
    return f"{rounded(100 * Decimal(str(share)), digits)}%"
