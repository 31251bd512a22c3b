"""IsoFLOP profiles against closed forms and the biases that Open Athena published; refusals; seeds; noise."""

import numpy as np
import pandas as pd
import pytest

from fits.isoflop import ProfileStatus, isoflop
from fits.noise import seed_noise
from ladder.errors import InputError
from tests.fits_tables import (
    SURFACES,
    data_frame,
    isoflop_rows,
    ladder_rows,
    noisy_isoflop,
    optimum,
    surface_loss,
    table,
)

N = "active_params"
BUDGETS = [1e17, 1e18, 1e19, 1e20, 1e21]


def profiles(name: str, width: float, offset: float = 1.0) -> pd.DataFrame:
    """Return noise-free profiles of a surface, 15 sizes within `width` each side of `offset` times the optimum."""
    theta = SURFACES[name]
    rows = isoflop_rows(
        lambda n, d: surface_loss(theta, n, d), BUDGETS, lambda c: offset * optimum(theta, c)[0], width, 15
    )
    return isoflop(table(rows).frame, N).frame()


def tokens_error_at_1e24(name: str, width: float, offset: float = 1.0) -> float:
    """Return the relative error, in per cent, of D* extrapolated by a power law through the five budgets."""
    frame = profiles(name, width, offset)
    slope, level = np.polyfit(np.log(frame["budget"]), np.log(frame["tokens"]), 1)
    return 100 * (np.exp(level + slope * np.log(1e24)) / optimum(SURFACES[name], 1e24)[1] - 1)


@pytest.mark.parametrize("width", [2, 4, 8, 16])
def test_symmetric_surface_is_exact_at_every_width(width: int) -> None:
    frame = profiles("symmetric", width)
    for row in frame.to_dict("records"):
        n, d, _ = optimum(SURFACES["symmetric"], row["budget"])
        assert row["size"] == pytest.approx(n, rel=1e-7)
        assert row["tokens"] == pytest.approx(d, rel=1e-7)
    assert tokens_error_at_1e24("symmetric", width) == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "errors"),
    [("chinchilla", (-0.33, -1.30, -2.90, -5.10)), ("asymmetric", (-1.67, -6.50, -13.91, -23.12))],
)
def test_parabola_has_the_published_bias(name: str, errors: tuple[float, ...]) -> None:
    """Peers study, case 15 (Open Athena, noise-free, centred, +-2x to +-16x)."""
    for width, expected in zip((2, 4, 8, 16), errors, strict=True):
        assert tokens_error_at_1e24(name, width) == pytest.approx(expected, abs=0.02)


def test_offset_sizes_of_a_symmetric_surface_have_the_published_bias() -> None:
    """Peers study, case 16: sizes three times too small; at +-2x the minimum is not bracketed, so it is unused."""
    found = [tokens_error_at_1e24("symmetric", width, offset=1 / 3) for width in (4, 8, 16)]
    assert found == pytest.approx([3.47, 2.65, 1.51], abs=0.005)
    assert profiles("symmetric", 2, offset=1 / 3)["size"].isna().all()


def test_vertex_is_that_of_an_exact_parabola() -> None:
    sizes = np.geomspace(1e6, 1e8, 5)
    rows = pd.DataFrame(
        {
            "run_id": [f"r{i}" for i in range(5)],
            "budget": 1e18,
            "compute": 1e18,
            N: sizes,
            "tokens": 1e18 / 6 / sizes,
            "loss": 2.5 + 0.03 * np.log(sizes / 2e7) ** 2,
        }
    )
    result = isoflop(table(rows).frame, N)
    (found,) = result.optima
    assert found.size == pytest.approx(2e7)
    assert found.loss == pytest.approx(2.5)
    assert found.tokens == pytest.approx(1e18 / 6 / 2e7)
    assert found.near_hi == pytest.approx(2e7 * np.exp(np.sqrt(0.0025 * 2.5 / 0.03)))
    assert result.misfit_sd == pytest.approx(0, abs=1e-10)
    assert result.misfit_df == 2
    assert result.noise is None


def shaped(losses: list[float], budget: float = 1e18) -> pd.DataFrame:
    """Return one budget with these losses at sizes a factor of two apart."""
    sizes = 1e7 * 2.0 ** np.arange(len(losses))
    ids = [f"{budget:g}-{i}" for i in range(len(losses))]
    return pd.DataFrame(
        {"run_id": ids, "budget": budget, "compute": budget, N: sizes, "tokens": budget / 6 / sizes, "loss": losses}
    )


@pytest.mark.parametrize(
    ("losses", "status", "words"),
    [
        ([2.0, 2.2, 2.2, 2.0], ProfileStatus.CONCAVE, "not convex"),
        ([2.8, 2.5, 2.3, 2.2], ProfileStatus.UNBRACKETED, "larger"),
        ([2.2, 2.3, 2.5, 2.8], ProfileStatus.UNBRACKETED, "smaller"),
        ([2.2, 2.3], ProfileStatus.TOO_FEW_SIZES, "three"),
    ],
)
def test_budget_without_a_minimum_is_kept_with_its_reason(
    losses: list[float], status: ProfileStatus, words: str
) -> None:
    result = isoflop(table(shaped(losses)).frame, N)
    (profile,) = result.profiles
    assert profile.status is status
    assert words in profile.reason
    assert profile.optimum is None
    (asked,) = isoflop(table(shaped(losses)).frame, N, use_minimum=True).profiles
    assert asked.status is status
    assert asked.optimum is not None
    assert asked.optimum.raw_minimum
    assert asked.optimum.loss == min(losses)
    assert "as asked" in asked.reason


def test_three_sizes_are_flagged_as_exact() -> None:
    result = isoflop(table(shaped([2.3, 2.2, 2.25])).frame, N)
    (profile,) = result.profiles
    assert profile.status is ProfileStatus.EXACT_VERTEX
    assert profile.optimum is not None
    assert profile.optimum.size_lo is None
    assert profile.optimum.loss_se is None


def test_budgets_that_round_alike_stay_apart() -> None:
    rows = pd.concat([shaped([2.3, 2.2, 2.25], 1.5e19), shaped([2.2, 2.1, 2.15], 2.4e19)])
    assert [profile.budget for profile in isoflop(table(rows).frame, N).profiles] == [1.5e19, 2.4e19]


def test_seeds_are_averaged_before_the_parabola() -> None:
    single = shaped([2.4, 2.2, 2.19, 2.35])
    double = pd.concat(
        [
            single.assign(rung_id=single["run_id"], loss=single["loss"] + d, run_id=single["run_id"] + str(d))
            for d in (-0.01, 0.01)
        ]
    )
    one, two = (isoflop(table(rows).frame, N).optima[0] for rows in (single, double))
    assert two.size == pytest.approx(one.size)
    assert two.loss == pytest.approx(one.loss)


def test_one_size_a_budget_is_a_ladder() -> None:
    result = isoflop(table(ladder_rows([1e18, 1e19, 1e20], [3.0, 2.8, 2.6])).frame, N)
    assert [profile.status for profile in result.profiles] == [ProfileStatus.SINGLE_SIZE] * 3
    assert [optimum.loss for optimum in result.optima] == [3.0, 2.8, 2.6]


def test_some_missing_budgets_are_refused() -> None:
    rows = pd.concat([shaped([2.3, 2.2, 2.25]), shaped([2.2, 2.1, 2.15], 2e18).assign(budget=np.nan)])
    with pytest.raises(InputError, match="some have none"):
        isoflop(table(rows).frame, N)


def test_interval_of_the_vertex_covers() -> None:
    """90 % intervals from pooled scatter (20 + 10 degrees of freedom): 30 tables of 5 budgets, about three standard errors."""
    truth = {b: optimum(SURFACES["besiroglu"], b) for b in np.geomspace(1e18, 1e20, 5).tolist()}
    hits = []
    for seed in range(30):
        frame = isoflop(table(noisy_isoflop(seed)).frame, N).frame()
        for row in frame.to_dict("records"):
            true = next(n for b, (n, _, _) in truth.items() if abs(b / row["budget"] - 1) < 1e-9)
            hits.append(row["size_lo"] <= true <= row["size_hi"])
    assert 0.82 <= np.mean(hits) <= 0.98


def test_delphi_parabolas_are_the_published_ones() -> None:
    runs = data_frame("delphi/isoflop_runs.csv")
    published = data_frame("delphi/isoflop_optima.csv")
    published = published[published["kind"] == "published"].sort_values("budget_flops")
    runs = runs[runs["suite"] == published["suite"].iloc[0]]
    rows = pd.DataFrame(
        {
            "run_id": runs["run_name"],
            "budget": runs["budget_flops"],
            "compute": runs["total_flops"],
            N: runs["tokens"],
            "tokens": runs["tokens"],
            "loss": runs["loss"],
        }
    )  # the published parabolas are in tokens, so tokens stand in the size column here
    found = isoflop(table(rows).frame, N).frame()
    np.testing.assert_allclose(found["size"], published["opt_tokens"], rtol=1e-7)
    np.testing.assert_allclose(found["loss"], published["opt_loss"], rtol=1e-9)


def test_seed_noise_is_the_pooled_standard_deviation() -> None:
    rows = pd.DataFrame({"rung_id": ["a", "a", "a", "b", "b", "c"], "loss": np.exp([1.0, 1.01, 1.02, 2.0, 2.02, 3.0])})
    noise = seed_noise(rows)
    assert noise is not None
    assert noise.sd == pytest.approx(np.sqrt((2e-4 + 2e-4) / 3))
    assert (noise.df, noise.rungs) == (3, 2)
    assert seed_noise(rows.drop_duplicates("rung_id")) is None
