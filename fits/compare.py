"""Several fits side by side: what each says of one compute."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from fits.laws import law_named
from fits.optimum import allocation
from fits.result import FitResult, Target


def optimal_target(result: FitResult, compute: float) -> Target:
    """Return the target at `compute` for which a fit is compared: compute-optimal under the fit itself.

    The median of compute / (N D) over the fitted runs stands in place of 6, so that the declared size column and FLOP
    convention are kept. Raises InputError for laws that read more than compute, parameters and tokens.
    """
    if result.spec.on_optima:
        return {"compute": compute}
    best = allocation(law_named(result.law), result.theta, compute, flops_factor(result))
    return {"compute": compute, result.spec.size_column: best.size, "tokens": best.tokens}


def flops_factor(result: FitResult) -> float:
    """Return the median of compute / (N D) over the fitted points, which 6 N D assumes to be 6."""
    table = result.residuals
    return float(np.median(table["compute"] / (table["size"] * table["tokens"])))


def comparison(results: Mapping[str, FitResult], compute: float, level: float = 0.9) -> pd.DataFrame:
    """Return one row a fit, indexed by the names given: law, metric, status, parameters, prediction at `compute`.

    Columns median, lo, hi (observation interval of `level`) and extrapolation_factor are those of `predict`.
    """
    rows: dict[str, dict[str, object]] = {}
    for name, result in results.items():
        prediction = result.predict(optimal_target(result, compute), level=level).iloc[0]
        rows[name] = {
            "law": result.law,
            "metric": result.spec.metric,
            "status": str(result.status),
            **{str(key): prediction[key] for key in ("median", "lo", "hi", "extrapolation_factor")},
            **result.theta,
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("fit")
