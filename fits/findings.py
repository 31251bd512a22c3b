"""What a diagnostic says: one finding each, with its verdict, its size and, where it is a test, its p-value."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

LEVEL = 0.01  # of each family of tests, after Holm's correction within the family


class Verdict(StrEnum):
    """What to make of a finding."""

    FLAG = "flag"  # a test at `LEVEL` rejects, or a fact that spoils the fit
    NOTE = "note"  # worth knowing; no test, or none that rejects
    OK = "ok"
    UNTESTED = "untested"  # the runs do not allow the test; the message says why


@dataclass(frozen=True)
class Finding:
    """One result of a diagnostic.

    Attributes:
        check: family, such as ``trend``.
        subject: column, run, rung or budget it is about.
        verdict: what to make of it.
        message: one sentence with the numbers.
        size: effect on ln L, where there is one.
        p_value: corrected within the family, None where it is no test.
    """

    check: str
    subject: str
    verdict: Verdict
    message: str
    size: float | None = None
    p_value: float | None = None


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number by Holm's method, in the same order.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def judged(p_value: float) -> Verdict:
    """Return FLAG below `LEVEL`, else OK."""
    return Verdict.FLAG if p_value < LEVEL else Verdict.OK
