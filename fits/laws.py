"""The shipped laws, each a declaration. A new law is added by declaring it and naming it in `LAWS`."""

import math
from collections.abc import Mapping
from typing import ClassVar, final

from fits.law import AbstractLaw, AbstractTermLaw, Param, Scale, Term
from ladder.errors import InputError

POSITIVE = (0.0, math.inf)  # a coefficient that goes to zero is found as a dead term
EXPONENT = (0.005, 3.0)  # published exponents lie in .02 .. 1.2 (laws.md sections 1-15); beyond, a term is degenerate


def _coefficient(name: str, meaning: str, unit: str = "loss") -> Param:
    return Param(name, name, POSITIVE, Scale.LOG, (), meaning, unit)


def _exponent(name: str, starts: tuple[float, ...], meaning: str) -> Param:
    return Param(name, rf"\{name}", EXPONENT, Scale.LINEAR, starts, meaning)


@final
class PowerLaw(AbstractTermLaw):
    """L = A C^-alpha: no floor. A comparator, too optimistic far out (mean bias -9.9 % beyond 30x, policy study)."""

    name = "power-law"
    formula = r"L = A\,C^{-\alpha}"
    params = (
        _coefficient("A", "loss at one FLOP"),
        _exponent("alpha", (0.02, 0.05, 0.1, 0.2), "exponent on compute"),
    )
    inputs = ("compute",)
    reference = "kaplan2020"
    linear = ("A",)
    terms = (Term("A", {"compute": "alpha"}),)
    published: ClassVar[Mapping[str, Mapping[str, float]]] = {}


@final
class PowerLawFloor(AbstractTermLaw):
    """L = E + A C^-alpha along the compute-optimal path."""

    name = "power-law-floor"
    formula = r"L = E + A\,C^{-\alpha}"
    params = (
        _coefficient("E", "irreducible loss"),
        _coefficient("A", "reducible loss at one FLOP"),
        _exponent("alpha", (0.03, 0.06, 0.12, 0.25), "exponent on compute"),
    )
    inputs = ("compute",)
    reference = "hoffmann2022"
    linear = ("E", "A")
    terms = (Term("E", {}), Term("A", {"compute": "alpha"}))
    # Marin's MoE ladder, Paloma macro loss, floor pinned at 1.6 (issue marin#4447; marin_moe.md (c)).
    published: ClassVar[Mapping[str, Mapping[str, float]]] = {"marin2026": {"E": 1.6, "A": 95.18, "alpha": 0.0941}}


@final
class Chinchilla(AbstractTermLaw):
    """L = E + A/N^alpha + B/D^beta (approach 3 of Hoffmann et al. 2022, with N by the column the fit declares)."""

    name = "chinchilla"
    formula = r"L = E + A\,N^{-\alpha} + B\,D^{-\beta}"
    params = (
        _coefficient("E", "irreducible loss"),
        _coefficient("A", "loss of one parameter"),
        _coefficient("B", "loss of one token"),
        _exponent("alpha", (0.2, 0.35, 0.5, 0.8), "exponent on parameters"),
        _exponent("beta", (0.2, 0.35, 0.5, 0.8), "exponent on tokens"),
    )
    inputs = ("active_params", "tokens")
    reference = "hoffmann2022"
    linear = ("E", "A", "B")
    terms = (Term("E", {}), Term("A", {"active_params": "alpha"}), Term("B", {"tokens": "beta"}))
    published: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "hoffmann2022": {"E": 1.69, "A": 406.4, "B": 410.7, "alpha": 0.34, "beta": 0.28},
        "besiroglu2024": {"E": 1.8172, "A": 482.01, "B": 2085.43, "alpha": 0.3478, "beta": 0.3658},
    }

    def optimum(
        self, theta: Mapping[str, float], compute: float, flops_per_param_token: float = 6.0
    ) -> tuple[float, float, float]:
        """Return N*, D* and L* that minimise the loss at `compute` = `flops_per_param_token` x N x D.

        N* = G (C/6)^(beta/(alpha+beta)), D* = (C/6)/N*, G = (alpha A/(beta B))^(1/(alpha+beta)) (Hoffmann et al.
        2022, eq. 4). The proportionality of compute to N D is an assumption that exact FLOP counts meet only roughly.

        >>> n, d, loss = Chinchilla().optimum(Chinchilla.published["besiroglu2024"], 1e21)
        >>> f"{n:.4e} {d:.4e} {loss:.5f}"
        '2.7785e+09 5.9985e+10 2.30553'
        """
        alpha, beta = theta["alpha"], theta["beta"]
        product = compute / flops_per_param_token
        scale = (alpha * theta["A"] / (beta * theta["B"])) ** (1 / (alpha + beta))
        n = scale * product ** (beta / (alpha + beta))
        return n, product / n, float(self.predict(theta, {"active_params": n, "tokens": product / n}))


LAWS: dict[str, AbstractLaw] = {law.name: law for law in (PowerLaw(), PowerLawFloor(), Chinchilla())}


def law_named(name: str) -> AbstractLaw:
    """Return the law with this name; raises InputError listing the names there are."""
    if name not in LAWS:
        raise InputError(f"there is no law {name!r}; choose from {', '.join(sorted(LAWS))}.")
    return LAWS[name]
