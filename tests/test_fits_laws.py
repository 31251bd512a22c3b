"""Every law: table and formula agree, values are those printed in the literature, gradients those of autodiff."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from fits.law import AbstractLaw, AbstractTermLaw, Scale
from fits.laws import LAWS, Chinchilla, PowerLawFloor, law_named
from fits.loss import LossKind, LossSpec, ResidualKind
from fits.objective import TermObjective
from ladder.errors import InputError
from ladder.runs import COLUMN_NAMES

HOFFMANN_UNROUNDED = {"E": 1.6934, "A": 406.4, "B": 410.7, "alpha": 0.3392, "beta": 0.2849}


TERM_LAWS = [law for law in LAWS.values() if isinstance(law, AbstractTermLaw)]


@pytest.mark.parametrize("law", LAWS.values(), ids=lambda law: law.name)
def test_parameter_table_is_sound(law: AbstractLaw) -> None:
    names = [param.name for param in law.params]
    assert len(names) == len(set(names))
    assert set(law.linear) <= set(names)
    assert set(law.published) == set(law.sources)
    assert set(law.inputs) <= set(COLUMN_NAMES)
    assert len(inspect.getsource(type(law)).splitlines()) <= 75
    for values in law.published.values():
        assert set(values) == set(names)
    for param in law.params:
        assert set(param.anchors.values()) <= set(names)
        assert param.relative_to in {"", "loss", *law.inputs}
        if not param.relative_to:
            assert all(param.bounds[0] < start < param.bounds[1] for start in param.starts)
    for source in law.sources.values():
        assert all(0 < low < high for low, high in source.domain.values())


@pytest.mark.parametrize("law", TERM_LAWS, ids=lambda law: law.name)
def test_terms_name_what_the_table_holds(law: AbstractTermLaw) -> None:
    names = [param.name for param in law.params]
    used = {term.coefficient for term in law.terms} | {e for term in law.terms for e in term.exponents.values()}
    assert set(names) == used
    assert len(names) == len(set(names))
    assert set(law.linear) == {term.coefficient for term in law.terms}
    features = law.features({name: np.array([2.0]) for name in law.inputs})
    assert {feature for term in law.terms for feature in term.exponents} == set(features)
    for param in law.params:
        assert (param.scale is Scale.LOG) == (param.name in law.linear)
        assert bool(param.starts) != (param.name in law.linear)
        assert all(param.bounds[0] < start < param.bounds[1] for start in param.starts)
    for values in law.published.values():
        assert set(values) == set(names)


@pytest.mark.parametrize(
    ("theta", "n", "d", "expected"),
    [
        (Chinchilla.published["hoffmann2022"], 70e9, 1.4e12, 1.93665),
        (Chinchilla.published["hoffmann2022"], 280e9, 300e9, 1.99326),
        (HOFFMANN_UNROUNDED, 70e9, 1.4e12, 1.92084),
        (Chinchilla.published["besiroglu2024"], 70e9, 1.4e12, 1.97388),
    ],
)
def test_chinchilla_gives_the_values_of_the_literature(theta: dict, n: float, d: float, expected: float) -> None:
    assert Chinchilla().predict(theta, {"active_params": n, "tokens": d}) == pytest.approx(expected, abs=5e-6)


@pytest.mark.parametrize(
    ("theta", "compute", "n", "ratio", "loss"),
    [
        (Chinchilla.published["hoffmann2022"], 5.76e23, 3.2190e10, 92.65, 1.93075),
        (HOFFMANN_UNROUNDED, 1e21, 2.2146e9, 33.98, 2.29539),
        (Chinchilla.published["besiroglu2024"], 1e21, 2.7785e9, 21.59, 2.30553),
        (Chinchilla.published["besiroglu2024"], 5.76e23, 7.2249e10, 18.39, 1.97444),
        (Chinchilla.published["besiroglu2024"], 1e23, 2.9446e10, 19.22, 2.03205),
    ],
)
def test_chinchilla_optimum_is_that_of_the_literature(
    theta: dict, compute: float, n: float, ratio: float, loss: float
) -> None:
    best_n, best_d, best_loss = Chinchilla().optimum(theta, compute)
    assert best_n == pytest.approx(n, rel=5e-5)
    assert best_d / best_n == pytest.approx(ratio, rel=5e-4)
    assert best_loss == pytest.approx(loss, abs=5e-6)
    marginal = theta["alpha"] * theta["A"] * best_n ** -theta["alpha"]
    assert marginal == pytest.approx(theta["beta"] * theta["B"] * best_d ** -theta["beta"], rel=1e-9)


def test_chinchilla_optimum_is_the_numeric_minimum() -> None:
    theta, law = Chinchilla.published["besiroglu2024"], Chinchilla()

    def loss(log_n: float) -> float:
        n = np.exp(log_n)
        return float(law.predict(theta, {"active_params": n, "tokens": 1e22 / (7.3 * n)}))

    found = optimize.minimize_scalar(loss, bounds=(15, 30), method="bounded", options={"xatol": 1e-10})
    n, d, best = law.optimum(theta, 1e22, flops_per_param_token=7.3)
    assert n == pytest.approx(np.exp(found.x), rel=1e-5)
    assert best == pytest.approx(found.fun, rel=1e-12)
    assert 7.3 * n * d == pytest.approx(1e22, rel=1e-12)


def test_marin_law_gives_the_registered_forecast() -> None:
    theta = PowerLawFloor.published["marin2026"]
    assert PowerLawFloor().predict(theta, {"compute": 1e23}) == pytest.approx(2.252, abs=5e-4)


LINEAR = LossSpec(LossKind.MSE, None, ResidualKind.LINEAR, 10.0)
DERIVED = [(law, LossSpec.huber()) for law in TERM_LAWS if law.name not in {"power-law", "power-law-floor"}]
DERIVED += [(LAWS["power-law-floor"], LossSpec.student_t(0.01)), (LAWS["power-law-floor"], LINEAR)]


@pytest.mark.parametrize(("law", "loss"), DERIVED, ids=lambda value: getattr(value, "name", str(value)))
def test_gradient_and_hessian_are_those_of_automatic_differentiation(law: AbstractTermLaw, loss: LossSpec) -> None:
    rng = np.random.default_rng(3)
    small = {"granularity", "experts"}
    x = {name: 2.0 ** rng.integers(0, 6, 20) if name in small else 10 ** rng.uniform(8, 11, 20) for name in law.inputs}
    log_loss = rng.uniform(0.7, 1.3, 20)
    weights = rng.integers(0, 3, 20).astype(float)
    objective = TermObjective.of(law, x, log_loss, loss, {})
    u = np.where([p.name in law.linear for p in law.params], rng.uniform(-1, 1, len(law.params)), 0.3)
    with jax.enable_x64(True):
        shift = jnp.array(objective.shift)

        def value(u: jax.Array) -> jax.Array:
            raw = shift @ u
            theta = {p.name: jnp.exp(v) if p.name in law.linear else v for p, v in zip(law.params, raw, strict=True)}
            r = jnp.log(law.predict(theta, {name: jnp.array(values) for name, values in x.items()})) - log_loss
            return (weights * loss.traced(r, jnp.array(log_loss))).sum()

        expected = [np.array(jax.jit(f)(jnp.array(u))) for f in (value, jax.grad(value), jax.hessian(value))]
    found = objective.evaluate(u[None], weights[None])
    np.testing.assert_allclose(found.value[0], expected[0], rtol=1e-10)
    np.testing.assert_allclose(found.gradient[0], expected[1], rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found.hessian[0], expected[2], rtol=1e-8, atol=1e-9)


def test_unknown_law_and_bad_loss_are_refused() -> None:
    with pytest.raises(InputError, match="choose from"):
        law_named("no-such-law")
    with pytest.raises(InputError, match="positive"):
        LossSpec.huber(0.0)
