"""The floor-integrated policy against brute-force quadrature, the study's printed targets and its limits."""

import math

import numpy as np
import pytest
from scipy import stats

from fits.floor_posterior import floor_posterior
from fits.vertices import vertices_of
from ladder.errors import InputError
from tests.fits_tables import data_frame

MOE_V16 = np.array([1e18, 3e18, 1e19, 3e19, 1e20, 3e20]), np.array([3.522, 3.339, 3.154, 3.0, 2.848, 2.725])


def brute_force(compute: np.ndarray, loss: np.ndarray, target: float) -> tuple[float, float, float]:
    """Return centre, spread and mean noise by quadrature written from policy.md section 1, one cell at a time."""
    a, y = np.log(compute.max() / compute), np.log(loss)
    k = len(y)
    inverse = np.linalg.inv([[float(i == j) + 4 * min(a[i], a[j]) for j in range(k)] for i in range(k)])
    q = inverse.sum()
    gammas = np.exp(np.linspace(math.log(0.012), 0.0, 56))
    shares = np.append(np.arange(37) * 0.025, 0.915 + 0.014 * np.arange(6))
    width = [(shares[min(i + 1, 42)] - shares[max(i - 1, 0)]) / (2 if 0 < i < 42 else 1) for i in range(43)]
    rows = []
    for gamma in gammas:
        for r, dr in zip(shares, width, strict=True):
            z = y - np.log(r + (1 - r) * np.exp(gamma * a))
            m = (inverse @ z).sum() / q
            scaled = 3 * 0.0005**2 + (z - m) @ inverse @ (z - m)
            log_weight = (
                stats.norm.logpdf(math.log(gamma), math.log(0.12), 2)
                + stats.beta.logpdf(min(max(r, 0.01), 0.99), 31.5, 18.5)
                + math.log(dr)
                - (3 + k - 1) / 2 * math.log(scaled)
            )
            rows.append((log_weight, m + math.log(r + (1 - r) * (target / compute.max()) ** -gamma), scaled, m))
    log_weight, value, scaled, m = np.array(rows).T
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    centre = weight @ value
    nu = 3 + k - 1
    spread = weight @ (value - centre) ** 2
    noise = (weight @ scaled / nu) * (1 + 1 / q) * nu / (nu - 2)
    delta = weight @ m - centre
    scale = 0.62**2 * (spread + noise) + (0.075 * (5 / k) ** 0.4 * delta) ** 2 + 0.001**2
    return centre, math.sqrt(scale), delta


@pytest.mark.parametrize("target", [1e21, 1e23])
@pytest.mark.parametrize("k", [3, 4, 6])
def test_policy_is_brute_force_quadrature(k: int, target: float) -> None:
    compute, loss = MOE_V16[0][:k], MOE_V16[1][:k]
    centre, scale, _ = brute_force(compute, loss, target)
    found = floor_posterior(compute, loss, 0.0).predictive(target)
    assert found.centres[0] == pytest.approx(centre, rel=1e-10)
    assert found.scales[0] == pytest.approx(scale, rel=1e-10)
    assert found.dfs == (8.0,)


def test_delphi_targets_are_those_of_the_study() -> None:
    frame = data_frame("delphi/isoflop_optima.csv")
    frame = frame[frame["kind"] == "published"]
    posterior = floor_posterior(frame["budget_flops"].to_numpy(), frame["opt_loss"].to_numpy(), 0.0)
    for compute, median in ((1e21, 2.7485), (1e22, 2.5322), (1e23, 2.3608)):
        assert posterior.predictive(compute).median == pytest.approx(median, abs=5e-5)
    assert posterior.predictive(1e23).interval(0.9) == pytest.approx((2.296, 2.427), abs=5e-4)


def test_marin_moe_targets_are_those_of_the_study() -> None:
    posterior = floor_posterior(*MOE_V16, 0.0)
    assert posterior.predictive(1e21).median == pytest.approx(2.6036, abs=5e-5)
    assert posterior.predictive(1e23).median == pytest.approx(2.2459, abs=5e-5)
    assert posterior.predictive(1e23).interval(0.9) == pytest.approx((2.186, 2.307), abs=5e-4)


def test_clean_law_far_from_the_prior_is_missed_as_the_study_says() -> None:
    """Policy study, section 8: r = .4 or .8 without noise is missed by +1.4 / -2.9 % at X 333."""
    compute = np.array([3e18, 9e18, 1.8e19, 3e19, 9e19, 1.8e20, 3e20])
    for share, sign in ((0.4, 1), (0.8, -1)):
        loss = 2.9 * (share + (1 - share) * (compute / 3e20) ** -0.11)
        truth = 2.9 * (share + (1 - share) * (1e23 / 3e20) ** -0.11)
        error = floor_posterior(compute, loss, 0.0).predictive(1e23).median / truth - 1
        assert sign * error > 0.002


def test_seed_noise_replaces_the_default_only_where_larger() -> None:
    small, none, large = (floor_posterior(*MOE_V16, sd).split(1e22) for sd in (5e-4, 0.0, 0.01))
    assert small == none
    assert large.seed - none.seed == pytest.approx(0.01**2 - 0.001**2)
    assert (large.parameter, large.form) == (none.parameter, none.form)
    total = floor_posterior(*MOE_V16, 0.01).predictive(1e22).scales[0] ** 2
    assert large.total == pytest.approx(total)


def test_discrepancy_is_for_extrapolation_only() -> None:
    posterior = floor_posterior(*MOE_V16, 0.0)
    assert posterior.split(1e19).form == 0
    assert posterior.split(3e20).form == pytest.approx(0, abs=1e-20)
    assert posterior.split(1e21).form < posterior.split(1e23).form


def test_units_of_compute_and_loss_do_not_matter() -> None:
    compute, loss = MOE_V16
    one = floor_posterior(compute, loss, 0.0).predictive(1e22)
    other = floor_posterior(compute / 1e18, loss / math.log(2), 0.0).predictive(1e4)
    assert other.median * math.log(2) == pytest.approx(one.median, rel=1e-12)
    assert other.scales == pytest.approx(one.scales, rel=1e-9)


def test_marginals_integrate_to_one() -> None:
    shares, gammas = floor_posterior(*MOE_V16, 0.0).marginals()
    for column in ("posterior", "prior"):
        assert (shares[column] * np.gradient(shares["r"])).sum() == pytest.approx(1)
        assert (gammas[column] * np.log(gammas["gamma"][1] / gammas["gamma"][0])).sum() == pytest.approx(1)


def test_two_rungs_are_refused() -> None:
    with pytest.raises(InputError, match="3 budgets"):
        floor_posterior(MOE_V16[0][:2], MOE_V16[1][:2], 0.0)


@pytest.mark.parametrize(("spread", "known"), [(0.058, True), (0.064, True), (0.12, True), (0.2, False)])
def test_a_budget_of_four_sizes_keeps_its_vertex(spread: float, known: bool) -> None:
    """The fourth size lies `spread` above the best; a hair beyond the window must not cost the budget its optimum."""
    curvature = math.log1p(spread) / 1.5**2
    budgets = np.repeat([1e18, 1e19, 1e20], 4)
    x = np.tile([-1.5, -0.5, 0.0, 0.5], 3)
    loss = 3.0 * (budgets / 1e18) ** -0.05 * np.exp(curvature * x**2)
    found = vertices_of(budgets, np.exp(x) * np.sqrt(budgets), budgets, loss)
    assert (found is not None) == known
    if found is not None:
        np.testing.assert_allclose(found.loss, [3.0, 3.0 * 10**-0.05, 3.0 * 10**-0.1], rtol=1e-9)
        np.testing.assert_allclose(np.exp(found.log_size), np.sqrt([1e18, 1e19, 1e20]), rtol=1e-9)
