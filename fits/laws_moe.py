"""Laws of mixture-of-experts models: routing, granularity, sparsity."""

from collections.abc import Mapping
from typing import Any, ClassVar, final

from fits.law import (
    AbstractLaw,
    AbstractTermLaw,
    Evidence,
    Inputs,
    Param,
    Scale,
    Source,
    Term,
    Theta,
    array_namespace,
    coefficient,
    exponent,
    scaled,
)

LN10 = 2.302585092994046  # Clark's law is in logarithms to base 10: with natural ones the loss at 1.3e9 is 0.57
SIGNED = (-3.0, 3.0)
CLARK_DOMAIN = {"active_params": (1.5e7, 1.31e9), "experts": (1.0, 512.0)}
CLARK_COUNTS = "parameters seen by one token (dense model), k = 1, every other layer routed, D = 130e9; nats per token"


def expansion(xp: Any, experts: Any, start: Any, largest: Any) -> Any:
    """Return Clark's saturating expansion: 1/E' = 1/(E - 1 + (1/start - 1/largest)^-1) + 1/largest; start at E = 1."""
    return 1 / (1 / (experts - 1 + 1 / (1 / start - 1 / largest)) + 1 / largest)


CLARK_PARAMS = (
    exponent("a", (-0.05, -0.1), "exponent on parameters", SIGNED, "a"),
    exponent("b", (-0.05, -0.15), "exponent on experts", SIGNED, "b"),
    exponent("c", (0.0, 0.02), "how the gain of experts falls with parameters", SIGNED, "c"),
    exponent("d", (1.0, 1.3), "level, log10 of the loss", (-30.0, 30.0), "d"),
    Param("E_start", "E_s", (1.0, 100.0), Scale.LOG, (1.5, 4.0), "expansion of one expert"),
    Param("E_max", "E_m", (2.0, 1e6), Scale.LOG, (150.0, 600.0), "largest useful expansion"),
)


def _clark(theta: Theta, x: Inputs) -> Any:
    xp = array_namespace(theta, x)
    n = xp.log(x["active_params"]) / LN10
    e = xp.log(expansion(xp, x["experts"], theta["E_start"], theta["E_max"])) / LN10
    return xp.exp(LN10 * (theta["a"] * n + theta["b"] * e + theta["c"] * n * e + theta["d"]))


@final
class Clark(AbstractLaw):
    """log10 L = a log10 N + b log10 E' + c log10 N log10 E' + d, E' saturating in the experts (Clark et al. 2022).

    Tokens are fixed in it. N is the dense parameter count; the published values are rounded (2 % of the loss).
    """

    name = "clark"
    formula = r"\ln L = \ln 10\,(a\,n + b\,e + c\,n\,e + d)"
    params = CLARK_PARAMS
    inputs = ("active_params", "experts")
    reference = "clark2022"
    linear = ()
    published: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "clark2022": {"a": -0.082, "b": -0.108, "c": 0.009, "d": 1.104, "E_start": 1.847, "E_max": 314.478},
    }
    sources: ClassVar[Mapping[str, Source]] = {"clark2022": Source(Evidence.SECONDARY, CLARK_COUNTS, CLARK_DOMAIN)}

    def predict(self, theta: Theta, x: Inputs) -> Any:
        """Return the loss."""
        return _clark(theta, x)

    def effective_params(self, theta: Theta, n: float, experts: float) -> float:
        """Return the dense N of equal loss: log10 N_eff = (y - d - b e1)/(a + c e1), e1 = log10 E_start."""
        xp = array_namespace()
        y, one = xp.log10(_clark(theta, {"active_params": n, "experts": experts})), xp.log10(theta["E_start"])
        return float(10 ** ((y - theta["d"] - theta["b"] * one) / (theta["a"] + theta["c"] * one)))

    def cutoff(self, theta: Theta) -> float:
        """Return N beyond which the law gives experts no gain: 10^(-b/c). Rounded values put it off by up to 3x."""
        return float(10 ** (-theta["b"] / theta["c"]))


@final
class ClarkFloor(AbstractLaw):
    """Clark's law above an irreducible loss (the second form of Clark et al. 2022)."""

    name = "clark-floor"
    formula = r"L = L_{\infty} + e^{\ln 10\,(a\,n + b\,e + c\,n\,e + d)}"
    params = (scaled("L_inf", "loss", (0.3, 0.6), "irreducible loss"), *CLARK_PARAMS)
    inputs = ("active_params", "experts")
    reference = "clark2022"
    floor = "L_inf"
    linear = ("L_inf",)
    published: ClassVar[Mapping[str, Mapping[str, float]]] = {}

    def predict(self, theta: Theta, x: Inputs) -> Any:
        """Return the loss."""
        return theta["L_inf"] + _clark(theta, x)


@final
class Krajewski(AbstractTermLaw):
    """L = c + (g/G^gamma + a)/N^alpha + b/D^beta: granularity at 64-fold expansion (Krajewski et al. 2024)."""

    name = "krajewski"
    formula = r"L = c + (g\,G^{-\gamma} + a)\,N^{-\alpha} + b\,D^{-\beta}"
    params = (
        coefficient("c", "irreducible loss"),
        coefficient("g", "loss of coarse experts"),
        coefficient("a", "loss of one parameter"),
        coefficient("b", "loss of one token"),
        exponent("alpha", (0.1, 0.2, 0.4), "exponent on parameters"),
        exponent("beta", (0.1, 0.2, 0.4), "exponent on tokens"),
        exponent("gamma", (0.3, 0.6, 1.2), "exponent on granularity"),
    )
    inputs = ("active_params", "tokens", "granularity")
    reference = "krajewski2024"
    linear = ("c", "g", "a", "b")
    terms = (
        Term("c", {}),
        Term("g", {"active_params": "alpha", "granularity": "gamma"}),
        Term("a", {"active_params": "alpha"}),
        Term("b", {"tokens": "beta"}),
    )
    published: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "krajewski2024": {"c": 0.47, "g": 2.1, "a": 18.1, "b": 30.8, "alpha": 0.115, "beta": 0.147, "gamma": 0.58}
    }
    sources: ClassVar[Mapping[str, Source]] = {
        "krajewski2024": Source(
            Evidence.SECONDARY,
            "N all parameters without embeddings at expansion 64, G = d_ff/d_expert; nats per token; rounded",
            {"active_params": (1.29e8, 3.7e9), "tokens": (1.6e10, 1.3e11), "granularity": (1.0, 16.0)},
        )
    }


@final
class Ludziejewski(AbstractTermLaw):
    """L = a E'^delta N^(alpha + gamma ln E') + b E'^omega D^(beta + zeta ln E') + c (Ludziejewski et al. 2025).

    Exponents are signed. E' is Clark's expansion with the published start and maximum, which few ladders determine.
    """

    name = "ludziejewski"
    formula = r"L = a\,X^{\delta}\,N^{\alpha + \gamma \ln X} + b\,X^{\omega}\,D^{\beta + \zeta \ln X} + c"
    params = (
        coefficient("c", "irreducible loss"),
        coefficient("a", "loss of one parameter"),
        coefficient("b", "loss of one token"),
        exponent("alpha", (-0.2, -0.35), "exponent on parameters", (-3.0, -0.005)),
        exponent("gamma", (0.0, 0.01), "its change with ln E'", SIGNED),
        exponent("delta", (-0.2, 0.0), "gain of experts in the first term", SIGNED),
        exponent("beta", (-0.2, -0.35), "exponent on tokens", (-3.0, -0.005)),
        exponent("zeta", (0.0, -0.02), "its change with ln E'", SIGNED),
        exponent("omega", (0.0, 0.3), "cost of experts in the second term", SIGNED),
    )
    inputs = ("active_params", "tokens", "experts")
    reference = "ludziejewski2025"
    linear = ("c", "a", "b")
    terms = (
        Term("c", {}),
        Term("a", {"1/N": "alpha", "1/X": "delta", "1/N X": "gamma"}),
        Term("b", {"1/D": "beta", "1/X": "omega", "1/D X": "zeta"}),
    )
    expansion_start, expansion_max = 2.0732, 290.4521  # Ludziejewski et al. 2025, table of fitted coefficients
    published: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "ludziejewski2025": {
            "c": 1.3637, "a": 35.91, "b": 35.98, "alpha": -0.1889, "gamma": 0.0098, "delta": -0.2285, "beta": -0.1775,
            "zeta": -0.0259, "omega": 0.5529,
        }
    }  # fmt: skip
    sources: ClassVar[Mapping[str, Source]] = {
        "ludziejewski2025": Source(
            Evidence.PAPER,
            "N active with embedding and head, C = 6 N D; top-1 of E experts; nats per token",
            {"active_params": (3e7, 2.7e9), "tokens": (1e9, 1.3e11), "experts": (1.0, 32.0)},
        )
    }

    def features(self, x: Inputs) -> Mapping[str, Any]:
        """Return negative logarithms, so that exponents keep the sign of the paper."""
        xp = array_namespace(x)
        n, d = xp.log(x["active_params"]), xp.log(x["tokens"])
        e = xp.log(expansion(xp, x["experts"], self.expansion_start, self.expansion_max))
        return {"1/N": -n, "1/D": -d, "1/X": -e, "1/N X": -n * e, "1/D X": -d * e}


@final
class EffectiveParams(AbstractLaw):
    """Chinchilla with effective parameters: L = E + A N^-alpha R^-(rho0 + rho1 ln(N/N0)) + B D^-beta R^sigma0.

    R = 1 + x/(1 + x/R_max) with x = N_total/N - 1 is one for a dense model and saturates. Our own proposal: rho1 < 0
    would be Clark's falling gain, sigma0 > 0 Ludziejewski's cost in tokens; with both zero N R^(rho0/alpha) is the
    effective parameter count. No values are published.
    """

    name = "effective-params"
    formula = r"L = E + A\,N^{-\alpha}\,R^{-\rho_0 - \rho_1 \ln(N/N_0)} + B\,D^{-\beta}\,R^{\sigma_0}"
    params = (
        scaled("E", "loss", (0.4, 0.7), "irreducible loss"),
        scaled("A", "loss", (0.1, 0.25), "loss of one parameter", {"active_params": "alpha"}),
        scaled("B", "loss", (0.1, 0.25), "loss of one token", {"tokens": "beta"}),
        exponent("alpha", (0.2, 0.35, 0.5), "exponent on parameters"),
        exponent("beta", (0.2, 0.35, 0.5), "exponent on tokens"),
        exponent("rho0", (0.05, 0.15), "gain of inactive parameters", SIGNED, r"\rho_0"),
        exponent("rho1", (0.0,), "its change with ln N", SIGNED, r"\rho_1"),
        exponent("sigma0", (0.0, 0.05), "cost of inactive parameters in tokens", SIGNED, r"\sigma_0"),
        Param("R_max", "R_m", (1.0, 1e5), Scale.LOG, (10.0, 40.0), "largest useful ratio of total to active"),
    )
    inputs = ("active_params", "tokens", "total_params")
    reference = "ludziejewski2025"
    floor = "E"
    linear = ("E", "A", "B")
    reference_params = 1e9  # N0, which only sets the point at which rho0 is stated
    published: ClassVar[Mapping[str, Mapping[str, float]]] = {}

    def predict(self, theta: Theta, x: Inputs) -> Any:
        """Return the loss."""
        xp, n = array_namespace(theta, x), x["active_params"]
        inactive = x["total_params"] / n - 1
        r = xp.log1p(inactive / (1 + inactive / theta["R_max"]))
        gain = theta["rho0"] + theta["rho1"] * xp.log(n / self.reference_params)
        params = theta["A"] * xp.exp(-theta["alpha"] * xp.log(n) - gain * r)
        return theta["E"] + params + theta["B"] * xp.exp(-theta["beta"] * xp.log(x["tokens"]) + theta["sigma0"] * r)
