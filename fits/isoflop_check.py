"""What IsoFLOP vertices are worth: a cubic beside the parabola, and the bias both have on a fitted surface.

Even without noise a parabola in ln N misses the optimum of an asymmetric or off-centre profile (-11 % of N* on
Chinchilla's surface with sizes that drift to 3x; OpenAthena 2026, arXiv 2603.22339); a cubic mends the centred case
and is worse than the parabola when wide and off-centre. So neither is trusted alone.
"""

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from fits.isoflop import IsoflopResult, Profile, SizePoint, parabola
from fits.law import AbstractLaw
from fits.optimum import allocation
from ladder.errors import InputError

COLUMNS = (
    "budget",
    "status",
    "size",
    "cubic_size",
    "surface_size",
    "parabola_bias",
    "cubic_bias",
    "near_lo",
    "near_hi",
)


def cubic_vertex(points: tuple[SizePoint, ...]) -> float | None:
    """Return the size at the minimum of a cubic in ln N within the sampled sizes.

    None with fewer than five sizes (four leave nothing to show misfit), or where the cubic has no minimum there.
    """
    if len(points) < 5 or any(point.size is None for point in points):
        return None
    logs = np.log([point.size for point in points if point.size is not None])
    centre = float(logs.mean())
    d, c, b, _ = np.polyfit(logs - centre, [point.loss for point in points], 3)
    roots = [c / (3 * d) * -1] if d == 0 else np.roots([3 * d, 2 * c, b]).tolist()
    minima = [root.real for root in roots if abs(complex(root).imag) < 1e-12 and 6 * d * complex(root).real + 2 * c > 0]
    inside = [root for root in minima if logs[0] < root + centre < logs[-1]]
    return math.exp(inside[0] + centre) if inside else None


def surface_check(
    result: IsoflopResult, law: AbstractLaw, theta: Mapping[str, float], flops_per_param_token: float
) -> pd.DataFrame:
    """Return one row a budget with a profile: its vertices, the optimum of a fitted surface, and the estimated bias.

    `parabola_bias` and `cubic_bias` are N* of the parabola and the cubic through noise-free losses of the surface at
    the sampled sizes, over the surface's own N*, minus one: what the method adds where the surface is true. `size` is
    the vertex of the observed profile, `near_lo` and `near_hi` its flat bottom. Raises InputError for a law that does
    not read parameters and tokens only.
    """
    if set(law.inputs) != {"active_params", "tokens"}:
        raise InputError(f"{law.name} is no surface in parameters and tokens; check profiles against chinchilla.")
    rows = [_row(profile, law, theta, flops_per_param_token) for profile in result.profiles if len(profile.points) > 2]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _row(profile: Profile, law: AbstractLaw, theta: Mapping[str, float], factor: float) -> dict[str, object]:
    compute = float(np.exp(np.mean(np.log([point.compute for point in profile.points]))))
    best = allocation(law, theta, compute, factor)
    smooth = tuple(
        SizePoint(point.size, point.tokens, point.compute, _loss(law, theta, point, compute, factor), point.runs)
        for point in profile.points
    )
    fit = parabola(smooth)
    vertex = None
    if fit is not None and fit.coefficients[2] > 0:
        vertex = fit.centre * math.exp(-fit.coefficients[1] / (2 * fit.coefficients[2]))
    cubic = cubic_vertex(smooth)
    optimum = profile.optimum
    return {
        "budget": profile.budget,
        "status": str(profile.status),
        "size": optimum.size if optimum else None,
        "cubic_size": cubic_vertex(profile.points),
        "surface_size": best.size,
        "parabola_bias": None if vertex is None else vertex / best.size - 1,
        "cubic_bias": None if cubic is None else cubic / best.size - 1,
        "near_lo": optimum.near_lo if optimum else None,
        "near_hi": optimum.near_hi if optimum else None,
    }


def _loss(law: AbstractLaw, theta: Mapping[str, float], point: SizePoint, compute: float, factor: float) -> float:
    assert point.size is not None  # profiles of three sizes have them
    return float(law.predict(theta, {"active_params": point.size, "tokens": compute / factor / point.size}))
