"""Laws of compute alone with more shape than a power law; they need a dozen budgets, or one curve of many points."""

from collections.abc import Mapping
from typing import Any, ClassVar, final

from fits.law import AbstractLaw, Inputs, Source, Theta, array_namespace, detached, exponent, scaled

NEWTON_STEPS = 12  # of the implicit equation of M4, whose slope lies between 1 and alpha: quadratic from any start


@final
class BrokenPowerLaw(AbstractLaw):
    """BNSL with one break (Caballero et al. 2023): the log-log slope goes from -c0 to -(c0 + c1) around d.

    A break beyond the fitted range is invisible; the paper fits it to 12 points and more.
    """

    name = "bnsl"
    formula = r"L = a + b\,C^{-c_0}\,(1 + (C/d)^{1/f})^{-c_1 f}"
    params = (
        scaled("a", "loss", (0.3, 0.55, 0.8), "irreducible loss"),
        scaled("b", "loss", (0.2, 0.4), "reducible loss at one FLOP", {"compute": "c0"}),
        exponent("c0", (0.02, 0.1, 0.3), "exponent below the break", (-1.0, 3.0), "c_0"),
        exponent("c1", (0.05, 0.2, -0.05), "change of the exponent", (-2.0, 3.0), "c_1"),
        scaled("d", "compute", (0.2, 1.0, 5.0), "compute of the break"),
        exponent("f", (0.3, 1.0), "width of the break in ln C", (0.02, 5.0), "f"),
    )
    inputs = ("compute",)
    reference = "caballero2023"
    floor = "a"
    linear = ("a", "b")
    published: ClassVar[Mapping[str, Mapping[str, float]]] = {}

    def predict(self, theta: Theta, x: Inputs) -> Any:
        """Return the loss; (1 + x^(1/f))^f is taken as exp(f ln(1 + exp(ln x / f))), which cannot overflow."""
        xp, c = array_namespace(theta, x), x["compute"]
        bend = theta["f"] * xp.logaddexp(0.0, xp.log(c / theta["d"]) / theta["f"])
        return theta["a"] + theta["b"] * xp.exp(-theta["c0"] * xp.log(c) - theta["c1"] * bend)


@final
class SaturatingPowerLaw(AbstractLaw):
    """M4 (Alabdulmohsin et al. 2022): (L - E)/(L0 - L)^alpha = B C^-c, a power law that starts at L0.

    L0 is the loss of a guess; without it (L0 to infinity) the law is a power law with a floor.
    """

    name = "m4"
    formula = r"(L - E)/(L_0 - L)^{\alpha} = B\,C^{-c}"
    params = (
        scaled("E", "loss", (0.3, 0.6, 0.8), "irreducible loss"),
        scaled("L0", "loss", (1.5, 2.5, 5.0), "loss of a guess"),
        scaled("B", "", (0.3, 1.0), "level, pure where alpha is 1", {"compute": "c"}),
        exponent("alpha", (0.5, 1.0, 2.0), "sharpness of the start", (0.02, 10.0)),
        exponent("c", (0.05, 0.15, 0.4), "exponent on compute", symbol="c"),
    )
    inputs = ("compute",)
    reference = "alabdulmohsin2022"
    floor = "E"
    linear = ()
    published: ClassVar[Mapping[str, Mapping[str, float]]] = {}
    sources: ClassVar[Mapping[str, Source]] = {}

    def predict(self, theta: Theta, x: Inputs) -> Any:
        """Return the loss: E + S s(w) with S = L0 - E and s the logistic function, w by Newton's method.

        The last two steps carry the derivatives: one gives the first, two give the second exactly.
        """
        xp, alpha, span = array_namespace(theta, x), theta["alpha"], theta["L0"] - theta["E"]
        level = xp.log(theta["B"]) - theta["c"] * xp.log(x["compute"]) - (1 - alpha) * xp.log(span)

        def step(w: Any, level: Any, alpha: Any) -> Any:
            below, above = xp.logaddexp(0.0, -w), xp.logaddexp(0.0, w)
            rise = xp.exp(-above) + alpha * xp.exp(-below)  # s(-w) + alpha s(w)
            return w - (alpha * above - below - level) / rise

        fixed_level, fixed_alpha = detached(xp, level), detached(xp, alpha)
        w = xp.where(fixed_level < 0, fixed_level, fixed_level / fixed_alpha)
        for _ in range(NEWTON_STEPS):
            w = step(w, fixed_level, fixed_alpha)
        w = step(step(w, level, alpha), level, alpha)
        return theta["E"] + span * xp.exp(-xp.logaddexp(0.0, -w))
