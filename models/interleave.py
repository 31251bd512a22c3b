"""Which domain each training sequence comes from.

Proportions are not drawn but kept: after every sequence each domain has had its share to within one sequence.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int


@dataclass(frozen=True, eq=False)
class Interleaving:
    """Which domain each training sequence comes from: one period, which repeats.

    Attributes:
        weights: sequences of each domain in one period.
        domains: of the sequences of one period, or of the first ones that are needed.
        ranks: how many sequences of the same domain come before, within the period.
    """

    weights: tuple[int, ...]
    domains: Int[np.ndarray, " period"]
    ranks: Int[np.ndarray, " period"]

    @staticmethod
    def of(weights: Sequence[int], needed: int) -> "Interleaving":
        """Return the sequence of domains that keeps the proportions of `weights` best, for at least `needed` sequences.

        Tijdeman (1980), The chairman assignment problem: of the k domains that may be next without getting ahead of
        their share, the one whose turn ends first. After any n sequences domain i has had n w_i to within
        1 - 1/(2k - 2). Weights are whole, so after their sum all shares are exact and it repeats.
        """
        return _interleaving(tuple(weights), min(sum(weights), max(1, needed)))

    def at(self, sequences: Int[np.ndarray, " n"]) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        """Return the domain of each training sequence, and how many of the same domain come before it."""
        periods, within = np.divmod(sequences, len(self.domains))
        domains = self.domains[within]
        return domains, periods * np.array(self.weights)[domains] + self.ranks[within]

    def counts(self, total: int) -> tuple[int, ...]:
        """Return how many of the first `total` sequences come from each domain."""
        periods, within = divmod(total, len(self.domains))
        rest = np.bincount(self.domains[:within], minlength=len(self.weights))
        return tuple(periods * weight + int(more) for weight, more in zip(self.weights, rest, strict=True))


@functools.lru_cache(maxsize=8)  # asked for several times for one run
def _interleaving(weights: tuple[int, ...], period: int) -> Interleaving:
    total, count = sum(weights), len(weights)
    if count == 1:
        return Interleaving(weights, np.zeros(1, np.int64), np.zeros(1, np.int64))
    domains, ranks = np.empty(period, np.int64), np.empty(period, np.int64)
    had = [0] * count
    slack, multiple = 2 * count - 2, math.lcm(*weights)
    for n in range(1, period + 1):
        # In units of 1 / (slack total): how far each domain is behind its share once the n-th sequence is due.
        behind = [slack * (weight * n - total * each) for weight, each in zip(weights, had, strict=True)]
        chosen = min(
            (index for index in range(count) if behind[index] >= total),
            key=lambda index: ((slack - 1) * total - behind[index]) * (multiple // weights[index]),
        )
        domains[n - 1], ranks[n - 1] = chosen, had[chosen]
        had[chosen] += 1
    return Interleaving(weights, domains, ranks)
