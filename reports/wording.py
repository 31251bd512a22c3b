"""How reports put things that `ladder.units` has no formatter for: probabilities, ratios, times, counts of things."""

import datetime
import re

UNITS = {"nats_per_token": "nats per token", "bits_per_byte": "bits per byte", "nats_per_byte": "nats per byte"}


def format_level(level: float) -> str:
    """Return a probability as people say it: ``90 %``.

    >>> format_level(0.9), format_level(0.975)
    ('90 %', '97.5 %')
    """
    return f"{100 * level:g} %"


def format_factor(factor: float) -> str:
    """Return a ratio with three significant digits: ``10``, ``3.24``.

    >>> format_factor(10.02), format_factor(333.3)
    ('10', '333')
    """
    return f"{factor:.3g}" if factor < 1000 else f"{factor:.0f}"


def format_time(stamp: str) -> str:
    """Return an ISO 8601 time in UTC to the second: ``2026-01-01 12:00:00 UTC``."""
    return f"{parse_time(stamp):%Y-%m-%d %H:%M:%S} UTC"


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 run``, ``2 runs``.

    >>> count_of(1, "run"), count_of(2, "run")
    ('1 run', '2 runs')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def readable_unit(unit: str) -> str:
    """Return the name of a unit as words."""
    return UNITS.get(unit, unit.replace("_", " "))


def parse_time(stamp: str) -> datetime.datetime:
    """Return the time in an ISO 8601 stamp with its zone."""
    return datetime.datetime.fromisoformat(stamp)


def short_digest(text: str) -> str:
    """Return `text` with every SHA-256 in it cut to its first twelve digits.

    >>> short_digest("test:" + "ab" * 32)
    'test:abababababab'
    """
    return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{52}\b", r"\1", text)
