"""Laws of parameters and tokens for dense models beside Chinchilla's: shared exponents, repeated data, over-training."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, final

from fits.law import (
    AbstractLaw,
    AbstractTermLaw,
    Evidence,
    Inputs,
    Source,
    Term,
    Theta,
    array_namespace,
    coefficient,
    exponent,
    scaled,
)


@final
class Kaplan(AbstractLaw):
    """L = ((N_c/N)^(a_N/a_D) + D_c/D)^a_D (Kaplan et al. 2020, eq. 1.5): no floor, N without embeddings."""

    name = "kaplan"
    formula = r"L = ((N_c/N)^{\alpha_N/\alpha_D} + D_c/D)^{\alpha_D}"
    params = (
        scaled("N_c", "active_params", (1e3, 1e6), "parameters of loss one"),
        scaled("D_c", "tokens", (1e3, 1e6), "tokens of loss one"),
        exponent("alpha_N", (0.05, 0.1, 0.2), "exponent on parameters", symbol=r"\alpha_N"),
        exponent("alpha_D", (0.05, 0.1, 0.2), "exponent on tokens", symbol=r"\alpha_D"),
    )
    inputs = ("active_params", "tokens")
    reference = "kaplan2020"
    linear = ()
    published: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "kaplan2020": {"N_c": 6.4e13, "D_c": 1.8e13, "alpha_N": 0.076, "alpha_D": 0.103}
    }
    sources: ClassVar[Mapping[str, Source]] = {
        "kaplan2020": Source(
            Evidence.SECONDARY,
            "N without embeddings; early-stopped runs over several epochs; nats per token",
            {"active_params": (768.0, 1.5e9), "tokens": (2.2e7, 2.3e10)},
        )
    }

    def predict(self, theta: Theta, x: Inputs) -> Any:
        """Return the loss through logarithms, as the powers would overflow."""
        xp = array_namespace(theta, x)
        n = theta["alpha_N"] / theta["alpha_D"] * (xp.log(theta["N_c"]) - xp.log(x["active_params"]))
        return xp.exp(theta["alpha_D"] * xp.logaddexp(n, xp.log(theta["D_c"]) - xp.log(x["tokens"])))


@final
class Muennighoff(AbstractLaw):
    """Chinchilla with the value of repeated tokens and of parameters beyond what the unique data can use decaying.

    With one epoch and N at most the optimum of the unique tokens it is Chinchilla (Muennighoff et al. 2023, eq. 5-6).
    """

    name = "muennighoff"
    formula = r"L = E + A\,N_e^{-\alpha} + B\,D_e^{-\beta},\, D_e = U + U\,R_D\,(1 - e^{(1 - D/U)/R_D})"
    params = (
        scaled("E", "loss", (0.4, 0.7), "irreducible loss"),
        scaled("A", "loss", (0.1, 0.25), "loss of one parameter", {"active_params": "alpha"}),
        scaled("B", "loss", (0.1, 0.25), "loss of one token", {"tokens": "beta"}),
        exponent("alpha", (0.2, 0.35, 0.5), "exponent on parameters"),
        exponent("beta", (0.2, 0.35, 0.5), "exponent on tokens"),
        exponent("R_D", (3.0, 10.0, 30.0), "repetitions after which tokens lose value", (0.1, 1e4), "R_D"),
        exponent("R_N", (3.0, 10.0, 30.0), "excess after which parameters lose value", (0.1, 1e4), "R_N"),
    )
    inputs = ("active_params", "tokens", "unique_tokens")
    reference = "muennighoff2023"
    floor = "E"
    linear = ("E",)
    published: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "muennighoff2023": {
            "E": math.exp(0.6254804),  # logarithms as the authors' repository prints them: its losses then come out
            "A": math.exp(6.255414),  # to all ten digits, with E, A and B rounded to eight only to 4e-7
            "B": math.exp(7.3049974),
            "alpha": 0.3526596,
            "beta": 0.3526596,
            "R_D": 15.387756,
            "R_N": 5.309743,
        }
    }
    sources: ClassVar[Mapping[str, Source]] = {
        "muennighoff2023": Source(
            Evidence.PAPER,
            "all parameters, C = 6 N D; C4, nats per token",
            {"active_params": (7e6, 9e9), "tokens": (1e8, 9e11), "unique_tokens": (1e8, 1.78e11)},
        )
    }

    def predict(self, theta: Theta, x: Inputs) -> Any:
        """Return the loss at effective parameters and tokens."""
        xp, alpha, beta = array_namespace(theta, x), theta["alpha"], theta["beta"]
        n, unique = x["active_params"], xp.minimum(x["unique_tokens"], x["tokens"])
        scale = (alpha * theta["A"] / (beta * theta["B"])) ** (1 / (alpha + beta))
        useful = xp.minimum(n, (unique * scale) ** (beta / alpha) * scale)
        repeated, excess = x["tokens"] / unique - 1, n / useful - 1
        tokens = unique * (1 - theta["R_D"] * xp.expm1(-repeated / theta["R_D"]))
        params = useful * (1 - theta["R_N"] * xp.expm1(-excess / theta["R_N"]))
        return theta["E"] + theta["A"] * params**-alpha + theta["B"] * tokens**-beta


@final
class Gadre(AbstractTermLaw):
    """L = E + (a M^eta + b M^-eta) C^-eta, M = D/N: Chinchilla with one exponent, in compute and over-training.

    alpha = beta = 2 eta, a = A 6^eta and b = B 6^eta for C = 6 N D (Gadre et al. 2024).
    """

    name = "gadre"
    formula = r"L = E + (a\,M^{\eta} + b\,M^{-\eta})\,C^{-\eta},\, M = D/N"
    params = (
        coefficient("E", "irreducible loss"),
        coefficient("a", "loss of parameters"),
        coefficient("b", "loss of tokens"),
        exponent("eta", (0.08, 0.12, 0.18, 0.3), "exponent on compute at one M"),
    )
    inputs = ("compute", "active_params", "tokens")
    reference = "gadre2024"
    linear = ("E", "a", "b")
    terms = (Term("E", {}), Term("a", {"C/M": "eta"}), Term("b", {"C M": "eta"}))
    published: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "gadre2024": {"E": 1.51, "a": 141.0, "b": 190.0, "eta": 0.121}
    }
    sources: ClassVar[Mapping[str, Source]] = {
        "gadre2024": Source(
            Evidence.MEMORY, "C = 6 N D; C4 eval of models trained on C4", {"tokens_per_param": (5.0, 640.0)}
        )
    }

    def features(self, x: Inputs) -> Mapping[str, Any]:
        """Return ln(C/M), which is ln 6 N^2 for C = 6 N D, and ln(C M), which is ln 6 D^2."""
        xp = array_namespace(x)
        compute, ratio = xp.log(x["compute"]), xp.log(x["tokens"]) - xp.log(x["active_params"])
        return {"C/M": compute - ratio, "C M": compute + ratio}

    def best_ratio(self, theta: Theta) -> float:
        """Return M*, tokens per parameter of least loss at any compute: (b/a)^(1/(2 eta))."""
        return float((theta["b"] / theta["a"]) ** (1 / (2 * theta["eta"])))
