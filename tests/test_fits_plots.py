"""Figures: the frames hold what is drawn, and the drawing goes onto the axes it is given."""

import dataclasses
import io

import numpy as np
import pytest
from matplotlib.figure import Figure

from fits import FitResult, FitSpec, fit
from fits.plots import (
    draw_isoflop,
    draw_loss,
    draw_residuals,
    isoflop_frame,
    loss_frame,
    residual_frame,
)
from fits.spec import FLOOR_INTEGRATED
from tests.fits_tables import noisy_isoflop, table


@pytest.fixture(scope="module")
def results() -> dict[str, FitResult]:
    """Return the policy and two laws."""
    runs = table(noisy_isoflop())
    names = (FLOOR_INTEGRATED, "power-law-floor", "chinchilla")
    return {name: fit(dataclasses.replace(FitSpec.of(name, "loss"), resamples=40), runs) for name in names}


def test_isoflop_figure_shows_points_curves_vertices_and_exclusions(results: dict[str, FitResult]) -> None:
    profiles = results[FLOOR_INTEGRATED].isoflop
    assert profiles is not None
    rows = noisy_isoflop()
    frame = isoflop_frame(profiles, rows.iloc[:2])
    counts = frame["kind"].value_counts().to_dict()
    assert counts == {"point": 35, "curve": 300, "optimum": 5, "excluded": 2}
    ax = draw_isoflop(Figure().subplots(), frame, profiles.size_column, "nats_per_token")
    assert ax.get_xscale() == "log"
    assert ax.get_xlabel() == "active parameters without embedding and head"
    assert ax.get_ylabel() == "loss (nats per token)"
    assert ax.get_title() == ""
    hollow = [line for line in ax.lines if line.get_markerfacecolor() == "none" and len(line.get_xdata())]
    assert sum(len(line.get_xdata()) for line in hollow) == 2


def test_loss_figure_shows_bands_that_widen_and_the_held_out_run(results: dict[str, FitResult]) -> None:
    result = results[FLOOR_INTEGRATED]
    others = {"free floor": results["power-law-floor"]}
    frame = loss_frame(result, 1e22, comparators=others, held_out=[(1e21, 2.3, 0.01), (1e22, 2.1, None)])
    curve = frame[frame["kind"] == "curve"]
    assert (curve["lo90"] < curve["lo50"]).all()
    assert (curve["hi50"] < curve["hi90"]).all()
    outside = curve[curve["extrapolated"]]
    assert (np.diff(np.log(outside["hi90"] / outside["lo90"])) > 0).all()
    assert curve["compute"].max() == pytest.approx(1e22)
    figure = Figure()
    top, bottom = figure.subplots(2)
    draw_loss(top, frame, "MATMUL_FULL", "nats_per_token")
    draw_loss(bottom, frame, "MATMUL_FULL", "nats_per_token", floor=result.theta["E"])
    assert top.get_xlabel() == "training compute (FLOPs, MATMUL_FULL)"
    assert [text.get_text() for text in top.get_legend().get_texts()] == ["free floor"]
    assert bottom.get_yscale() == "log"
    assert "minus" in bottom.get_ylabel()
    assert sum(line.get_marker() == "*" for line in top.lines) == 2
    figure.savefig(io.BytesIO())


@pytest.mark.parametrize("x", ["compute", "tokens_per_param"])
def test_residual_figure_shows_every_run_and_the_seed_noise(x: str, results: dict[str, FitResult]) -> None:
    frame = residual_frame(results["chinchilla"])
    ax = draw_residuals(Figure().subplots(), frame, x, "label (unit)")
    marks = [line for line in ax.lines if line.get_marker() == "o"]
    assert len(marks) == len(frame) == 45
    low, high = ax.get_ylim()
    assert low == -high
    assert high >= 100 * frame["residual"].abs().max()
    assert ax.get_legend() is not None
