"""The shipped laws, each a declaration. A new law is added by declaring it and naming it in `LAWS`."""

from collections.abc import Mapping
from typing import ClassVar, final

from fits.law import AbstractLaw, AbstractTermLaw, Evidence, Source, Term, coefficient, exponent
from fits.laws_curve import BrokenPowerLaw, SaturatingPowerLaw
from fits.laws_dense import Gadre, Kaplan, Muennighoff
from fits.laws_moe import Clark, ClarkFloor, EffectiveParams, Krajewski, Ludziejewski
from ladder.errors import InputError


@final
class PowerLaw(AbstractTermLaw):
    """L = A C^-alpha: no floor. A comparator, too optimistic far out (mean bias -9.9 % beyond 30x, policy study)."""

    name = "power-law"
    formula = r"L = A\,C^{-\alpha}"
    params = (
        coefficient("A", "loss at one FLOP"),
        exponent("alpha", (0.02, 0.05, 0.1, 0.2), "exponent on compute"),
    )
    inputs = ("compute",)
    reference = "kaplan2020"
    linear = ("A",)
    terms = (Term("A", {"compute": "alpha"}),)
    # (Cc/Cmin)^.050 with Cc = 3.1e8 PF-days of 8.64e19 FLOPs (laws.md section 1), in FLOPs.
    published: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "kaplan2020": {"A": (3.1e8 * 8.64e19) ** 0.050, "alpha": 0.050}
    }
    sources: ClassVar[Mapping[str, Source]] = {
        "kaplan2020": Source(
            Evidence.SECONDARY, "C_min in FLOPs, without embeddings; nats per token", {"compute": (1e16, 1e21)}
        )
    }


@final
class PowerLawFloor(AbstractTermLaw):
    """L = E + A C^-alpha along the compute-optimal path."""

    name = "power-law-floor"
    formula = r"L = E + A\,C^{-\alpha}"
    params = (
        coefficient("E", "irreducible loss"),
        coefficient("A", "reducible loss at one FLOP"),
        exponent("alpha", (0.03, 0.06, 0.12, 0.25), "exponent on compute"),
    )
    inputs = ("compute",)
    reference = "hoffmann2022"
    linear = ("E", "A")
    terms = (Term("E", {}), Term("A", {"compute": "alpha"}))
    # Marin's MoE ladder, Paloma macro loss, floor pinned at 1.6 (issue marin#4447; marin_moe.md (c)).
    published: ClassVar[Mapping[str, Mapping[str, float]]] = {"marin2026": {"E": 1.6, "A": 95.18, "alpha": 0.0941}}
    sources: ClassVar[Mapping[str, Source]] = {
        "marin2026": Source(
            Evidence.PAPER, "3 x forward FLOPs without the head; Paloma macro loss", {"compute": (1e18, 3e20)}
        )
    }


@final
class Chinchilla(AbstractTermLaw):
    """L = E + A/N^alpha + B/D^beta (approach 3 of Hoffmann et al. 2022, with N by the column the fit declares)."""

    name = "chinchilla"
    formula = r"L = E + A\,N^{-\alpha} + B\,D^{-\beta}"
    params = (
        coefficient("E", "irreducible loss"),
        coefficient("A", "loss of one parameter"),
        coefficient("B", "loss of one token"),
        exponent("alpha", (0.2, 0.35, 0.5, 0.8), "exponent on parameters"),
        exponent("beta", (0.2, 0.35, 0.5, 0.8), "exponent on tokens"),
    )
    inputs = ("active_params", "tokens")
    reference = "hoffmann2022"
    linear = ("E", "A", "B")
    terms = (Term("E", {}), Term("A", {"active_params": "alpha"}), Term("B", {"tokens": "beta"}))
    published: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "hoffmann2022": {"E": 1.69, "A": 406.4, "B": 410.7, "alpha": 0.34, "beta": 0.28},
        "besiroglu2024": {"E": 1.8172, "A": 482.01, "B": 2085.43, "alpha": 0.3478, "beta": 0.3658},
    }
    _box: ClassVar[Mapping[str, tuple[float, float]]] = {"active_params": (7e7, 1.6e10), "tokens": (5e9, 5e11)}
    sources: ClassVar[Mapping[str, Source]] = {
        "hoffmann2022": Source(Evidence.SECONDARY, "all parameters, C = 6 N D; nats per token; rounded", _box),
        "besiroglu2024": Source(Evidence.SECONDARY, "all parameters, C = 6 N D; nats per token", _box),
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


LAWS: dict[str, AbstractLaw] = {
    law.name: law
    for law in (
        PowerLaw(),
        PowerLawFloor(),
        Chinchilla(),
        Kaplan(),
        Muennighoff(),
        Gadre(),
        SaturatingPowerLaw(),
        BrokenPowerLaw(),
        Clark(),
        ClarkFloor(),
        Krajewski(),
        Ludziejewski(),
        EffectiveParams(),
    )
}


def law_named(name: str) -> AbstractLaw:
    """Return the law with this name; raises InputError listing the names there are."""
    if name not in LAWS:
        raise InputError(f"there is no law {name!r}; choose from {', '.join(sorted(LAWS))}.")
    return LAWS[name]
