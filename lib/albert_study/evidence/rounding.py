"""Numbers as README and figures show them; report/numbers.typ does the same in the report.

Rounds the decimal number as a table has it, half away from zero. Python's own formats round the binary value, so that
58.65 becomes 58.6.
"""

from decimal import ROUND_HALF_UP, Decimal


def rounded(value: float | Decimal, digits: int = 0) -> str:
    """The number with so many decimals; a zero has no sign."""
    shown = Decimal(str(value)).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
    return f"{shown if shown else abs(shown):f}"


def percent(share: float, digits: int = 0) -> str:
    """A share as a percentage: 0.125 is "13%", with one decimal "12.5%"."""
    return f"{rounded(100 * Decimal(str(share)), digits)}%"
