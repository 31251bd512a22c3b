"""Published laws that are evaluated here but not fitted, and published values of the shipped laws with their domain.

Abnar's law of sparsity and Ling's efficiency leverage have no public data to fit them to. Units and bases of
logarithms are those that reproduce the publications' own claims; where print is ambiguous the docstring says so.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fits.law import AbstractLaw, Evidence
from ladder.errors import InputError

PF_DAY = 8.64e19  # FLOPs of 1e15 FLOP/s for a day; Kaplan et al. (2020) give compute in it


@dataclass(frozen=True)
class PublishedLoss:
    """A published law at one point.

    Attributes:
        loss: in the unit of the publication.
        evidence: where the coefficients were read; `counts`: what the publication counts.
        extrapolation: by input, how many times it lies beyond the publication's range, 1 inside.
        outside: inputs beyond it.
    """

    loss: float
    evidence: Evidence
    counts: str
    extrapolation: Mapping[str, float]
    outside: tuple[str, ...]


def evaluate_published(
    law: AbstractLaw, source: str, x: Mapping[str, float], *, extrapolate: bool = False
) -> PublishedLoss:
    """Return the published law at `x`, with how far it lies beyond the fitted range.

    Raises InputError when there are no values of that source, when an input is missing, or when an input lies beyond
    the range the publication fitted and `extrapolate` is not set.
    """
    if source not in law.published:
        raise InputError(
            f"{law.name} has no published values of {source!r}; it has {', '.join(law.published) or 'none'}."
        )
    missing = [name for name in law.inputs if name not in x]
    if missing:
        raise InputError(f"{law.name} needs {', '.join(missing)}.")
    about = law.sources[source]
    values = dict(x)
    if {"tokens", "active_params"} <= x.keys():
        values.setdefault("tokens_per_param", x["tokens"] / x["active_params"])
    factors = {
        name: max(low / values[name], values[name] / high, 1.0)
        for name, (low, high) in about.domain.items()
        if name in values
    }
    outside = tuple(name for name, factor in factors.items() if factor > 1)
    if outside and not extrapolate:
        shown = "; ".join(
            f"{n} = {values[n]:g}, fitted {about.domain[n][0]:g} to {about.domain[n][1]:g}" for n in outside
        )
        raise InputError(
            f"{law.name} of {source} is asked beyond what it was fitted to: {shown}. Pass extrapolate=True to have the "
            "value with its extrapolation factor."
        )
    loss = float(law.predict(law.published[source], x))
    return PublishedLoss(loss, about.evidence, about.counts, factors, outside)


@dataclass(frozen=True)
class SinglePower:
    """L = (scale / x)^exponent."""

    scale: float
    exponent: float

    def loss(self, x: float) -> float:
        """Return the loss at `x`."""
        return float((self.scale / x) ** self.exponent)


# Kaplan et al. (2020), eq. 1.1 and 1.2: N without embeddings, D tokens of early-stopped training; [S].
KAPLAN_ALONE: Mapping[str, SinglePower] = {"N": SinglePower(8.8e13, 0.076), "D": SinglePower(5.4e13, 0.095)}


def kaplan_critical_batch(loss: float) -> float:
    """Return the critical batch in tokens at a loss, 2e8 / L^(1/0.21) (Kaplan et al. 2020, eq. 1.4; [S])."""
    return float(2e8 / loss ** (1 / 0.21))


# Abnar et al. (2025), table of coefficients, in two secondary sources; a, b, c, d, e are the linear block.
ABNAR: Mapping[str, float] = {
    "alpha": 0.5962, "beta": 0.3954, "lambda": -0.1666, "delta": 0.1603, "gamma": 0.1595, "a": 16612.50, "b": 5455.67,
    "c": 0.4598, "d": 17.26, "e": 0.94,
}  # fmt: skip


@dataclass(frozen=True)
class Abnar:
    """L = e + a N^-alpha + b D^-beta + c (1-S)^-lambda + d (1-S)^-delta N^-gamma (Abnar et al. 2025).

    N counts all parameters, S = (E - K)/E. It explains 99 % of the variance it was fitted to and 68 % at the held-out
    S = .98: do not extrapolate sparsity.
    """

    def loss(self, total_params: float, tokens: float, sparsity: float) -> float:
        """Return the loss in nats per token; raises InputError unless 0 <= `sparsity` < 1."""
        if not 0 <= sparsity < 1:
            raise InputError(f"sparsity={sparsity} is a share of inactive experts, from 0 to below 1.")
        k, active = ABNAR, 1 - sparsity
        return float(
            k["e"]
            + k["a"] * total_params ** -k["alpha"]
            + k["b"] * tokens ** -k["beta"]
            + k["c"] * active ** -k["lambda"]
            + k["d"] * active ** -k["delta"] * total_params ** -k["gamma"]
        )


def ling_leverage(activation: float, granularity: float, compute: float) -> float:
    """Return C_dense / C_moe at equal loss: A'^(alpha + gamma (log2 G)^2 + beta log2 G) (Ling team 2025).

    Arguments:
        activation: active over all experts, shared ones counted in both.
        granularity: 2 d_model / d_expert, half of Krajewski's.
        compute: FLOPs of the MoE, M x D.

    alpha = a + d log10 C and 1/A' = 1/(A + 1/(1/As - 1/Am)) + 1/Am. The bases, log10 and log2, are not printed; they
    alone reproduce the paper's claims. A dense model (A = 1) gets .994, not 1.
    """
    alpha = 1.23 - 7.61e-2 * math.log10(compute)
    start, largest = 1.63e-2, 5.28e16
    effective = 1 / (1 / (activation + 1 / (1 / start - 1 / largest)) + 1 / largest)
    fine = math.log2(granularity)
    return float(effective ** (alpha + 1.67e-2 * fine**2 - 1.17e-1 * fine))


def ling_learning_rate(compute: float) -> float:
    """Return Ling's peak learning rate of MoE runs at training FLOPs (3e17 to 3e20)."""
    return float(1.1576 * compute**-0.1529)


def ling_batch_tokens(compute: float) -> float:
    """Return Ling's batch in tokens of MoE runs at training FLOPs (3e17 to 3e20)."""
    return float(0.0694 * compute**0.3644)


def ling_allocation(compute: float) -> tuple[float, float]:
    """Return Ling's optimal training FLOPs per token and tokens of MoE runs; their product is about `compute`."""
    return float(0.1915 * compute**0.5095), float(5.2232 * compute**0.4905)
