"""What goes wrong in public tools (peers study part 3, cases 1 to 29), each as a test of this one."""

# Past 400 lines on purpose: one test a case, in the order and under the numbers of the list they are read beside.

import dataclasses

import numpy as np
import pandas as pd
import pytest

from fits import FitSpec, FitStatus, fit
from fits.covariance import sandwich
from fits.isoflop import ProfileStatus, isoflop
from fits.isoflop_check import cubic_vertex, surface_check
from fits.law import AbstractTermLaw, coefficient, exponent
from fits.laws import LAWS, Chinchilla
from fits.loss import LossKind, LossSpec, ResidualKind
from fits.newton import minimise
from fits.objective import TermObjective
from fits.solve import DEAD, Solution, solve
from ladder.counts import count_params
from ladder.errors import InputError
from ladder.flops import FlopConvention, forward_flops_per_token, training_flops_per_token
from ladder.hardware import WEIGHT_BYTES, memory_per_device
from ladder.recipe import recipe_named
from ladder.runs import RunTable
from ladder.shape import MoeShape
from ladder.sizing import make_rung
from tests.fits_tables import SURFACES, data_frame, isoflop_rows, noisy_isoflop, optimum, surface_loss, table

MIXTRAL = MoeShape(32_000, 4096, 32, 4096, 32, 8, 128, 8, 2, 14_336, 0, 0)


def epoch() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return inputs and ln L of Epoch's 240 points."""
    frame = data_frame("chinchilla_epoch/runs.csv")
    frame = frame[frame["besiroglu_outlier"] == 0]
    n = frame["params"].to_numpy()
    return {"active_params": n, "tokens": frame["flops"].to_numpy() / (6 * n)}, np.log(frame["loss"].to_numpy())


def epoch_fit(loss: LossSpec | None = None) -> Solution:
    """Return the fit of Chinchilla's law to them."""
    x, y = epoch()
    return solve(Chinchilla(), x, y, loss or LossSpec.huber(), {})


def bias(name: str, width: float, offset: float = 1.0, drift: float = 1.0, cubic: bool = False) -> float:
    """Return the error in per cent of D* at 1e24 of noise-free profiles at 1e17..1e21.

    Sizes are centred on `offset` times the optimum, times `drift` at the last budget, growing evenly in ln C.
    """
    theta, budgets = SURFACES[name], [1e17, 1e18, 1e19, 1e20, 1e21]
    off = {b: offset * drift ** (i / 4) for i, b in enumerate(budgets)}
    rows = isoflop_rows(
        lambda n, d: surface_loss(theta, n, d), budgets, lambda c: off[c] * optimum(theta, c)[0], width, 15
    )
    found = isoflop(table(rows).frame, "active_params")
    if cubic:
        tokens = [p.budget / 6 / (cubic_vertex(p.points) or np.nan) for p in found.profiles]
    else:
        tokens = [p.budget / 6 / p.centre * np.exp(p.parabola[1] / (2 * p.parabola[2])) for p in found.profiles]
    slope, level = np.polyfit(np.log(budgets), np.log(tokens), 1)
    return float(100 * (np.exp(level + slope * np.log(1e24)) / optimum(theta, 1e24)[1] - 1))


def test_case_01_starts_reach_the_optimum_and_agree() -> None:
    solution = epoch_fit()
    assert solution.value == pytest.approx(0.0010182740178, abs=1e-9)
    assert solution.agreement >= 0.95


def test_case_02_dead_term_is_never_returned_unsaid() -> None:
    x, y = epoch()
    objective = TermObjective.of(Chinchilla(), x, y, LossSpec.huber(), {})
    start = objective.from_theta({"E": 1.897, "A": 153.0, "B": 384.0, "alpha": 0.263, "beta": 1.33})
    end = minimise(objective, start[None], np.ones((1, 240)))
    shares = objective.linearise(end.u[0]).largest_share
    assert end.value[0] < 0.0113 / 2 or min(shares.values()) < DEAD or not end.stationary[0]
    one_ratio = {"compute": np.geomspace(1e18, 1e21, 8)}
    curved = np.log(100.0) - 0.05 * np.log(one_ratio["compute"]) - 0.004 * (np.log(one_ratio["compute"]) - 44) ** 2
    assert solve(LAWS["power-law-floor"], one_ratio, curved, LossSpec.mse(), {}).status is FitStatus.DEAD_TERM


def test_case_03_the_sum_not_the_mean_is_minimised() -> None:
    x, y = epoch()
    twice = solve(Chinchilla(), {k: np.tile(v, 2) for k, v in x.items()}, np.tile(y, 2), LossSpec.huber(), {})
    once = epoch_fit()
    assert twice.value == pytest.approx(2 * once.value, rel=1e-10)
    assert twice.theta == pytest.approx(once.theta, rel=1e-7)


@pytest.mark.parametrize("unit", [1.0, 1e6, 1e9])
def test_case_04_units_change_no_prediction(unit: float) -> None:
    x, y = epoch()
    plain = epoch_fit()
    scaled = solve(Chinchilla(), {k: v / unit for k, v in x.items()}, y, LossSpec.huber(), {})
    far = {"active_params": np.array([7e10]), "tokens": np.array([1.4e12])}
    one = Chinchilla().predict(plain.theta, far)
    other = Chinchilla().predict(scaled.theta, {k: v / unit for k, v in far.items()})
    assert one == pytest.approx(other, rel=1e-8)


def test_case_05_no_start_ends_worse_than_it_began() -> None:
    x, y = epoch()
    objective = TermObjective.of(Chinchilla(), x, y, LossSpec.huber(), {})
    starts = np.random.default_rng(0).normal([0, 0, 0, 0.5, 0.5], 1.5, (64, 5))
    ones = np.ones((64, 240))
    assert (minimise(objective, starts, ones).value <= objective.evaluate(starts, ones).value).all()


class Bounded(AbstractTermLaw):
    """Chinchilla with A held below one."""

    name, formula = "bounded", "L = E"
    params = (
        dataclasses.replace(coefficient("E", "floor"), bounds=(0.0, 1.0)),
        dataclasses.replace(coefficient("A", "loss of one parameter"), bounds=(0.0, 1.0)),
        coefficient("B", "loss of one token"),
        exponent("alpha", (0.2, 0.5), "exponent"),
        exponent("beta", (0.2, 0.5), "exponent"),
    )
    inputs, reference, linear, terms = Chinchilla.inputs, "hoffmann2022", Chinchilla.linear, Chinchilla.terms
    published = {}  # noqa: RUF012


def test_case_06_bounds_are_kept_and_reported() -> None:
    x, y = epoch()
    solution = solve(Bounded(), x, y, LossSpec.huber(), {})
    assert solution.theta["E"] <= 1
    assert solution.theta["A"] <= 1 + 1e-12
    assert solution.status is FitStatus.BOUND_HIT
    assert set(solution.at_bound) & {"E", "A"}


def test_case_07_huber_is_solved_to_the_end_not_for_ten_reweightings() -> None:
    """At the returned point the gradient vanishes against the contributions of single runs."""
    solution = epoch_fit()
    gradient = solution.objective.evaluate(solution.u[None], np.ones((1, 240))).gradient[0]
    line = solution.objective.linearise(solution.u)
    flux = np.abs(np.clip(line.residuals, -1e-3, 1e-3)) @ np.abs(line.jacobian)
    assert (np.abs(gradient) < 1e-9 * flux).all()


def test_case_08_covariance_is_a_sandwich_not_the_identity() -> None:
    solution = epoch_fit(LossSpec.huber(0.01))
    cov = sandwich(solution, tuple(map(str, range(240))))
    assert not np.allclose(cov.matrix, np.eye(5))
    assert cov.se["alpha"] == pytest.approx(0.02, rel=0.6)  # besiroglu2024: .02


def test_case_09_starts_need_no_grid_of_raw_coefficients() -> None:
    """A true A of 478 is found from starts that are shares of the loss; a law's own grid in 1..20 is never asked for."""
    assert epoch_fit().theta["A"] == pytest.approx(477.826, rel=1e-5)
    assert all(not param.starts for param in Chinchilla.params if param.name in Chinchilla.linear)


def test_case_10_unknown_options_are_errors() -> None:
    with pytest.raises(TypeError):
        FitSpec("chinchilla", "loss", disp=True)  # type: ignore[call-arg]
    with pytest.raises(InputError, match="do not go together"):
        LossSpec(LossSpec.mse().kind, 1e-3)


def test_case_11_delta_is_on_the_scale_of_residuals() -> None:
    plain = epoch_fit(LossSpec.mse())
    wide = epoch_fit(LossSpec.huber(1.0))
    assert wide.theta == pytest.approx(plain.theta, rel=1e-6)
    result = fit(
        dataclasses.replace(FitSpec.of("chinchilla", "loss"), loss=LossSpec.huber(1.0), resamples=0),
        table(noisy_isoflop()),
    )
    assert "no residual exceeds delta" in result.message


def test_case_12_delta_changes_the_fit_and_is_reported() -> None:
    betas = [epoch_fit(loss).theta["beta"] for loss in (LossSpec.huber(1e-3), LossSpec.huber(1e-2), LossSpec.mse())]
    assert betas[0] < betas[1] < betas[2]
    assert betas[2] > 1.1 * betas[0]
    assert "Huber(0.001)" in str(LossSpec.huber())


def test_case_13_residuals_are_of_log_or_linear_loss_and_said_to_be() -> None:
    assert "ln L" in str(LossSpec.huber())
    assert "ln L" in str(LossSpec.mse())
    linear = epoch_fit(LossSpec(LossKind.HUBER, 1e-3, ResidualKind.LINEAR))
    assert linear.theta["beta"] == pytest.approx(0.373, abs=1e-3)
    assert linear.value <= 0.0028965  # the best of vpnls' grid of a thousandth, in the peers study
    assert "on L" in str(linear.objective.loss)
    squares = epoch_fit(LossSpec(LossKind.MSE, None, ResidualKind.LINEAR)).theta["beta"]
    assert squares > epoch_fit(LossSpec.mse()).theta["beta"] * 1.02


def test_case_14_overestimates_weigh_more_when_asked() -> None:
    """With a factor of ten the law sinks below most runs; by default losses are symmetric."""
    heavy = epoch_fit(LossSpec(LossKind.HUBER, 1e-3, overestimate_weight=10.0))
    plain = epoch_fit()
    above = [float((s.objective.linearise(s.u).residuals > 0).mean()) for s in (heavy, plain)]
    assert above[0] < 0.2 < above[1]
    r = np.linspace(-0.1, 0.1, 41)
    np.testing.assert_allclose(LossSpec.huber().rho(r)[0], LossSpec.huber().rho(-r)[0])


@pytest.mark.parametrize(
    ("name", "errors"),
    [
        ("symmetric", (0, 0, 0, 0)),
        ("chinchilla", (-0.33, -1.30, -2.90, -5.10)),
        ("asymmetric", (-1.67, -6.50, -13.91, -23.12)),
    ],
)
def test_case_15_bias_of_centred_parabolas(name: str, errors: tuple[float, ...]) -> None:
    found = [bias(name, width) for width in (2, 4, 8, 16)]
    assert found == pytest.approx(errors, abs=0.006)


def test_case_16_bias_of_parabolas_off_centre() -> None:
    found = [bias("symmetric", width, offset=1 / 3) for width in (2, 4, 8, 16)]
    assert found == pytest.approx((3.97, 3.47, 2.65, 1.51), abs=0.006)
    drift = [bias("symmetric", width, drift=1 / 3) for width in (2, 4, 8, 16)]
    assert drift == pytest.approx((6.07, 5.17, 3.70, 1.69), abs=0.006)


def test_case_17_cubic_mends_the_centred_and_spoils_the_wide() -> None:
    assert max(abs(bias("chinchilla", width, cubic=True)) for width in (2, 4, 8, 16)) <= 0.165
    assert max(abs(bias("asymmetric", width, cubic=True)) for width in (2, 4, 8, 16)) <= 1.035
    assert bias("chinchilla", 16, drift=1 / 3, cubic=True) == pytest.approx(10.2, abs=0.06)
    assert bias("chinchilla", 16, drift=1 / 3) == pytest.approx(3.1, abs=0.06)
    rows = isoflop_rows(
        lambda n, d: surface_loss(SURFACES["chinchilla"], n, d),
        [1e19, 1e20, 1e21],
        lambda c: optimum(SURFACES["chinchilla"], c)[0],
        16,
        15,
    )
    check = surface_check(isoflop(table(rows).frame, "active_params"), Chinchilla(), SURFACES["chinchilla"], 6.0)
    assert (check["parabola_bias"].abs() > 5 * check["cubic_bias"].abs()).all()
    np.testing.assert_allclose(check["size"] / check["surface_size"] - 1, check["parabola_bias"], rtol=1e-6)


def test_case_18_concave_or_unbracketed_profiles_are_refused() -> None:
    n = np.geomspace(1e8, 1e9, 7)
    for bend, word in ((-0.05, ProfileStatus.CONCAVE), (0.001, ProfileStatus.UNBRACKETED)):
        x = np.log(n / 3e8)
        rows = pd.DataFrame(
            {"run_id": [str(i) for i in range(7)], "budget": 1e19, "compute": 1e19, "active_params": n, "tokens": 1e19 / 6 / n,
             "loss": 3 - 0.1 * x + bend * x**2}
        )  # fmt: skip
        more = rows.assign(run_id="x" + rows["run_id"], budget=2e19, compute=2e19)
        (one, _) = isoflop(table(pd.concat([rows, more])).frame, "active_params").profiles
        assert one.status is word
        assert one.optimum is None


def test_case_19_near_budgets_stay_apart() -> None:
    theta = SURFACES["chinchilla"]
    rows = isoflop_rows(lambda n, d: surface_loss(theta, n, d), [1.5e19, 2.4e19], lambda c: optimum(theta, c)[0], 4, 5)
    assert [p.budget for p in isoflop(table(rows).frame, "active_params").profiles] == [1.5e19, 2.4e19]


def test_case_20_approach_two_is_eight_times_noisier_where_flat_parabolas_are_taken() -> None:
    """Noise as large as the profile is deep (2 %, +-2x, 15 sizes): vertices of nearly flat parabolas lie anywhere.

    Taken as they are, the exponent is 8.2 times as noisy as the surface's and up to 614 % off (Open Athena: about 8
    times, 716 %). Refusing vertices outside the sampled sizes leaves 1.04 times and 49 %. Where the noise is a tenth of
    that, the two are equal within 30 % from +-4x on.
    """
    theta, budgets = SURFACES["asymmetric"], [1e17, 1e18, 1e19, 1e20, 1e21]
    true = theta["beta"] / (theta["alpha"] + theta["beta"])
    raw, usable, surface = [], [], []
    for seed in range(24):
        rows = isoflop_rows(lambda n, d: surface_loss(theta, n, d), budgets, lambda c: optimum(theta, c)[0], 2, 15)
        rows["loss"] *= np.exp(np.random.default_rng(seed).normal(0, 0.02, len(rows)))
        result = isoflop(table(rows).frame, "active_params")
        convex = [p for p in result.profiles if p.parabola[2] > 0]
        vertices = [np.log(p.centre) - p.parabola[1] / (2 * p.parabola[2]) for p in convex]
        raw.append(np.polyfit(np.log([p.budget for p in convex]), vertices, 1)[0])
        optima = result.optima
        usable.append(np.polyfit(np.log([o.compute for o in optima]), np.log([o.size for o in optima]), 1)[0])
        x = {"active_params": rows["active_params"].to_numpy(), "tokens": rows["tokens"].to_numpy()}
        found = solve(Chinchilla(), x, np.log(rows["loss"].to_numpy()), LossSpec.mse(), {}).theta
        surface.append(found["beta"] / (found["alpha"] + found["beta"]))

    def error(values: list[float]) -> float:
        return float(np.sqrt(np.mean((np.array(values) - true) ** 2)))

    assert error(raw) / error(surface) == pytest.approx(8.17, abs=0.05)
    assert np.abs(np.array(raw) / true - 1).max() == pytest.approx(6.14, abs=0.01)
    assert error(usable) < 1.1 * error(surface)
    assert np.abs(np.array(usable) / true - 1).max() < 0.5


def test_case_21_flat_profiles_have_an_interval() -> None:
    result = isoflop(table(noisy_isoflop()).frame, "active_params")
    for best in result.optima:
        assert best.size_lo < best.size < best.size_hi
        assert best.near_lo < best.size < best.near_hi
        assert best.tokens_lo < best.tokens < best.tokens_hi
        assert best.near_tokens_lo < best.tokens < best.near_tokens_hi


def test_case_22_optimum_names_its_variables() -> None:
    best = isoflop(table(noisy_isoflop()).frame, "active_params").optima[2]
    assert best.size * best.tokens * 6 == pytest.approx(best.compute, rel=1e-6)
    n, d, _ = optimum(SURFACES["besiroglu"], best.compute)
    assert best.size == pytest.approx(n, rel=0.3)
    assert best.tokens == pytest.approx(d, rel=0.3)


def test_case_23_size_is_a_declared_column() -> None:
    rows = noisy_isoflop()
    rows["nonembedding_active_params"] = rows["active_params"] - 2 * 512 * 32_000 * 0.02
    spec = dataclasses.replace(FitSpec.of("chinchilla", "loss"), resamples=0)
    without, with_ = (
        fit(dataclasses.replace(spec, size_column=column), table(rows))
        for column in ("nonembedding_active_params", "active_params")
    )
    assert without.theta["alpha"] != pytest.approx(with_.theta["alpha"], rel=1e-6)
    assert "nonembedding_active_params" in str(without.summary())
    assert without.inputs_sha256 != with_.inputs_sha256


def test_case_24_six_nd_errs_in_both_directions() -> None:
    long = MoeShape(1_000, 32_768, 4, 256, 4, 4, 64, 0, 0, 0, 1, 1024)
    assert training_flops_per_token(long, FlopConvention.MATMUL_FULL) > 3 * training_flops_per_token(
        long, FlopConvention.SIX_ND
    )
    lookup = MoeShape(500_000, 128, 4, 256, 4, 4, 64, 0, 0, 0, 1, 1024)
    assert training_flops_per_token(lookup, FlopConvention.MATMUL_FULL) < 0.6 * training_flops_per_token(
        lookup, FlopConvention.SIX_ND
    )
    frame = table(noisy_isoflop()).frame
    frame.loc[3, "flop_convention"] = "MATMUL_FULL"
    with pytest.raises(InputError, match="mix flop_convention"):
        fit("chinchilla", RunTable.of(frame))


def test_case_25_flops_count_active_experts() -> None:
    every = dataclasses.replace(MIXTRAL, top_k=8)
    assert (
        training_flops_per_token(MIXTRAL, FlopConvention.MATMUL_FULL)
        < training_flops_per_token(every, FlopConvention.MATMUL_FULL) / 3
    )
    assert (
        pytest.approx(forward_flops_per_token(every).matmuls / forward_flops_per_token(MIXTRAL).matmuls, rel=0.1)
        == 287.78 / 79.98
    )


@pytest.mark.parametrize(
    ("shape", "total"),
    [
        (MIXTRAL, 46_702_792_704),  # mistralai/Mixtral-8x7B-v0.1
        (MoeShape(151_936, 4096, 48, 2048, 32, 4, 128, 128, 8, 768, 0, 0), 30_532_122_624),  # Qwen/Qwen3-30B-A3B
        (
            MoeShape(151_936, 4096, 24, 2048, 16, 16, 128, 60, 4, 1408, 1, 5632),
            14_315_784_192,
        ),  # Qwen/Qwen1.5-MoE-A2.7B
    ],
    ids=["mixtral", "qwen3-moe", "qwen2-moe"],
)
def test_case_26_every_moe_family_is_counted(shape: MoeShape, total: int) -> None:
    assert count_params(shape).total == pytest.approx(total, rel=1e-4)


def test_case_27_expert_weights_divide_over_the_expert_axis() -> None:
    rung = make_rung(recipe_named("marin-moe-v16"), 10**20, 1536)
    one, eight = (memory_per_device(rung, 8, 1, expert_axis=axis) for axis in (1, 8))
    assert one.weights - eight.weights == pytest.approx(
        WEIGHT_BYTES * rung.counts.routed_experts * (1 - 1 / 8) / rung.shape.layers
    )
    assert one.residuals == eight.residuals
    assert one.layer == eight.layer


class Wide(AbstractTermLaw):
    """Chinchilla's terms with room for the exponents of a power of ln N."""

    name, formula = "wide", "L = E"
    params = (*Chinchilla.params[:3], *(dataclasses.replace(p, bounds=(0.005, 20.0)) for p in Chinchilla.params[3:]))
    inputs, reference, linear, terms = Chinchilla.inputs, "hoffmann2022", Chinchilla.linear, Chinchilla.terms
    published = {}  # noqa: RUF012


def test_case_28_power_of_ln_n_is_another_law() -> None:
    """Chinchilla's form in ln N over its mean is no entry of the table; in-sample it is .9 % better, with other exponents."""
    x, y = epoch()
    logs = {key: np.log(value) / np.log(value).mean() for key, value in x.items()}
    other = solve(Wide(), logs, y, LossSpec.huber(), {})
    assert other.value == pytest.approx(0.0010094749, abs=1e-9)
    assert (other.theta["alpha"], other.theta["beta"]) == pytest.approx((5.89, 7.41), abs=0.01)
    assert not [name for name in LAWS if "ln-n" in name]


def test_case_29_metrics_are_not_mixed() -> None:
    both = pd.concat([table(noisy_isoflop()).frame, table(noisy_isoflop()).frame.assign(metric="bpb")])
    with pytest.raises(InputError, match="say which one"):
        fit("chinchilla", RunTable.of(both))
    mixed = table(noisy_isoflop()).frame
    mixed.loc[2, "loss_unit"] = "bits_per_byte"
    with pytest.raises(InputError, match="mix loss_unit"):
        fit("chinchilla", RunTable.of(mixed))
    result = fit(dataclasses.replace(FitSpec.of("chinchilla", "loss"), resamples=0), table(noisy_isoflop()))
    assert result.spec.metric == "loss"
    assert "loss (nats_per_token)" in str(result.summary())
