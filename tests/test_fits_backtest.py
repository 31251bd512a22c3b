"""The backtest's scores, skill and refusals, its command and figures; the forecast command; the skill benchmark."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

from benchmarks.methods import DEFAULT, METHODS, Problem
from benchmarks.sets import COLUMNS, Case
from fits import fit
from fits.backtest import backtest, quantiles
from fits.backtest_plots import (
    coverage_frame,
    draw_coverage,
    draw_error,
    draw_floor,
    draw_weights,
    error_frame,
    weight_frame,
)
from fits.cli import app
from fits.predictive import Predictive
from fits.spec import STACKED, FitSpec
from fits.why import why_moved
from forecasts.scores import crps
from ladder.errors import InputError
from tests.fits_tables import table
from tests.test_fits_honesty import SPEC, ladder_frame, plain_backtest


def test_quantiles_are_those_of_the_predictive() -> None:
    mixture = Predictive((0.3, 0.7), (0.9, 1.0), (0.01, 0.03), (8.0, 5.0))
    levels = (0.025, 0.5, 0.9)
    assert quantiles(mixture, levels) == pytest.approx([math.log(mixture.quantile(q)) for q in levels], abs=1e-12)


def test_scores_and_skill_of_a_backtest() -> None:
    found = plain_backtest()
    row = found.frame[found.frame["law"] == STACKED].iloc[0]
    below = table(ladder_frame().head(3))
    predictive = fit(SPEC, below).predictive(
        dict(ladder_frame().iloc[3][["compute", "tokens", "nonembedding_active_params"]])
    )
    assert row["median"] == pytest.approx(predictive.median, rel=1e-9)
    assert row["crps"] == pytest.approx(crps(predictive, row["observed"]), rel=0.02)
    assert row["error"] == pytest.approx(math.log(row["median"] / row["observed"]))
    summary = found.summary().set_index("law")
    persistence = found.frame[found.frame["law"] == "last-rung"]["crps"].mean()
    assert summary.loc[STACKED, "skill_last-rung"] == pytest.approx(1 - summary.loc[STACKED, "crps"] / persistence)
    assert summary.loc["power-law", "skill_power-law"] == 0
    assert found.leaks == 0


def test_three_budgets_cannot_be_backtested() -> None:
    with pytest.raises(InputError, match="needs 4 budgets"):
        backtest(table(ladder_frame().head(3)), [SPEC])
    with pytest.raises(InputError, match="one metric"):
        backtest(table(ladder_frame()), [SPEC, FitSpec.of("power-law", "other")])


def test_backtest_and_forecast_commands(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    table(ladder_frame()).save(path)
    run = CliRunner().invoke
    answer = run(app, ["backtest", str(path), "--law", "stacked", "--metric", "loss", "--json", "--quiet",
                       "-o", str(tmp_path / "b.png")])  # fmt: skip
    assert answer.exit_code == 0, answer.output
    document = json.loads(answer.stdout)
    assert {row["law"] for row in document["summary"]} == {"stacked", "power-law", "power-law-floor", "last-rung"}
    assert (tmp_path / "b.png").stat().st_size > 10_000
    answer = run(app, ["forecast", str(path), "--at", "1e21", "--metric", "loss", "--json"])
    assert answer.exit_code == 0, answer.output
    document = json.loads(answer.stdout)
    truth = 1.7 + 1.3 * 1000**-0.12
    assert document["interval"][0] < truth < document["interval"][1]
    assert set(document["variance"]) == {"parameter", "form", "seed"}
    assert document["alternatives"][0]["name"] == STACKED
    shown = run(app, ["forecast", str(path), "--at", "1e21", "--metric", "loss"])
    assert "interval" in shown.stdout
    assert "would help most" in shown.stdout


def test_why_a_forecast_moved() -> None:
    frame = ladder_frame()
    old, new = fit(SPEC, table(frame.head(4))), fit(SPEC, table(frame))
    steps = why_moved(old, new, table(frame), {"compute": 1e21})
    assert steps["median"].iloc[0] == pytest.approx(old.predictive({"compute": 1e21}).median)
    assert steps["median"].iloc[-1] == pytest.approx(new.predictive({"compute": 1e21}).median)
    assert steps["change"].dropna().sum() == pytest.approx(math.log(steps["median"].iloc[-1] / steps["median"].iloc[0]))


def test_figures_have_what_they_claim() -> None:
    runs = table(ladder_frame())
    found, result = plain_backtest(), fit(SPEC, runs)
    axes = Figure().subplots(1, 4)
    draw_error(axes[0], error_frame(found))
    draw_coverage(axes[1], coverage_frame(found))
    weights = weight_frame(result)
    draw_weights(axes[2], weights)
    draw_floor(axes[3], result)
    assert weights.drop(columns="factor").sum(axis=1).to_numpy() == pytest.approx(1)
    assert "extrapolation factor" in axes[0].get_xlabel()
    assert axes[2].get_ylim() == (0, 1)


def test_skill_and_fit_are_one_policy() -> None:
    """The benchmark forecasts through arrays, people through run tables; both are the same numbers."""
    frame = ladder_frame()
    rows = frame.assign(size=frame["nonembedding_active_params"], rung=np.nan, published=np.nan)[COLUMNS].astype(float)
    held = rows.tail(1).assign(compute=1e21, size=np.nan, tokens=np.nan)
    mixture = METHODS[DEFAULT](Problem.of(Case("synthetic", rows, held), 20))
    assert mixture is not None
    predictive = fit(SPEC, table(frame)).predictive({"compute": 1e21})
    assert float(mixture.quantile(0.5)[0]) == pytest.approx(math.log(predictive.median), abs=1e-9)
    assert mixture.scales[:, 0] == pytest.approx(predictive.scales, rel=1e-9)
