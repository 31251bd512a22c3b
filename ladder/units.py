"""Quantities as people write and read them: ``3e18``, ``23B``, ``2.2510``, ``+0.81 %``.

One parser and one set of formatters for the command line, plots and reports, so that a number looks the same
wherever it appears. Parsing is exact: ``1e23`` is the integer 10**23, not the nearest float.
"""

import math
import re
from decimal import Decimal, InvalidOperation, Overflow

from ladder.errors import InputError

LARGEST = Decimal(10) ** 30  # a million times the largest training run there is; beyond it an exponent is mistyped
_SUFFIX = {"": 0, "k": 3, "K": 3, "M": 6, "B": 9, "G": 9, "T": 12}
_QUANTITY = re.compile(r"^\s*([+-]?[0-9_]*\.?[0-9_]+(?:[eE][+-]?[0-9]+)?)\s*([kKMBGT]?)\s*([A-Za-z/ ]*)$")


def parse_quantity(text: str, what: str = "value", unit: str = "") -> int:
    """Return the exact positive integer written in `text` (``"3e18"``, ``"3e18 FLOPs"``, ``"1.5T"``, ``"23B"``).

    `what` names the quantity and `unit` the word that may follow the number (``"FLOPs"``, ``"tokens"``).

    >>> parse_quantity("1e23") == 10**23, parse_quantity("1.5T tokens", unit="tokens")
    (True, 1500000000000)

    Raises InputError when the text is no number, is not a whole number, is not positive, is beyond 1e30, or names
    another unit.
    """
    match = _QUANTITY.match(text)
    if match is None:
        raise InputError(f"{what}={text!r} is not a number; write it as 3e18, 23B or 1500000.")
    number, suffix, word = match.groups()
    word = word.strip()
    if word and word.lower().rstrip("s") != unit.lower().rstrip("s"):
        raise InputError(f"{what}={text!r} is given in {word!r}, expected {unit or 'a plain number'}.")
    try:
        value = Decimal(number.replace("_", "")) * (Decimal(10) ** _SUFFIX[suffix])
    except (InvalidOperation, Overflow):
        raise InputError(f"{what}={text!r} is not a number; write it as 3e18, 23B or 1500000.") from None
    if value <= 0:
        raise InputError(f"{what}={text!r} must be positive.")
    if value > LARGEST:
        raise InputError(f"{what}={text!r} is beyond anything that can be trained; check its exponent.")
    if value != value.to_integral_value():
        raise InputError(f"{what}={text!r} is not a whole number.")
    return int(value)


def format_flops(value: float) -> str:
    """Return FLOPs with three significant digits, trailing zeros dropped: ``3e18``, ``6.5e10``.

    >>> format_flops(3 * 10**18), format_flops(65000000000)
    ('3e18', '6.5e10')
    """
    if value == 0:
        return "0"
    mantissa, exponent = f"{float(value):.2e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def format_count(value: float) -> str:
    """Return a count of parameters or tokens with three significant digits: ``15.4k``, ``129B``.

    >>> format_count(15400), format_count(129_048_000_000), format_count(999), format_count(999_950)
    ('15.4k', '129B', '999', '1M')
    """
    for power, suffix in ((12, "T"), (9, "B"), (6, "M"), (3, "k")):
        if abs(value) >= 0.9995 * 10**power:
            return f"{value / 10**power:.3g}{suffix}"
    return f"{value:.3g}"


def format_loss(value: float) -> str:
    """Return a loss with four decimals: ``2.2510``."""
    return f"{value:.4f}"


def format_percent(fraction: float, signed: bool = True) -> str:
    """Return a fraction as a percentage with two decimals and, by default, its sign: ``+0.81 %``.

    >>> format_percent(0.0081), format_percent(0.9, signed=False)
    ('+0.81 %', '90.00 %')
    """
    return f"{100 * fraction:{'+' if signed else ''}.2f} %"


def format_duration(seconds: float) -> str:
    """Return a duration as people say it: ``4.2 s``, ``3 min 05 s``, ``2 h 10 min``, ``12.3 d``.

    >>> format_duration(4.2), format_duration(185), format_duration(7800)
    ('4.2 s', '3 min 05 s', '2 h 10 min')
    """
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest:02d} s"
    if seconds < 48 * 3600:
        hours, minutes = divmod(round(seconds / 60), 60)
        return f"{hours} h {minutes:02d} min"
    return f"{seconds / 86400:.3g} d"
