"""Compute-optimal allocation under any law of parameters and tokens: N* and D* at a compute, and the path of both."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fits.law import AbstractLaw
from ladder.errors import InputError

SPAN = (1e-6, 1e4)  # tokens per parameter between which the optimum is looked for
GRID = 400  # values of ln N; the optimum is then refined between its neighbours
GOLDEN = (5**0.5 - 1) / 2
REFINEMENTS = 40  # golden-section steps, to 3e-10 of ln N; the loss is flat to rounding within 1e-8


@dataclass(frozen=True)
class Allocation:
    """N*, D* and the loss there at one compute; `bracketed` is false where the loss falls to the edge of `SPAN`."""

    compute: float
    size: float
    tokens: float
    loss: float
    bracketed: bool


def allocation(
    law: AbstractLaw,
    theta: Mapping[str, float],
    compute: float,
    flops_per_param_token: float = 6.0,
    others: Mapping[str, float] | None = None,
) -> Allocation:
    """Return the allocation of least loss with compute = `flops_per_param_token` x N x D.

    Arguments:
        others: further inputs of the law, such as ``experts``, held at these values.

    Works for any law that reads ``active_params`` and ``tokens``; where a closed form exists the tests hold this to
    it. Raises InputError for laws that read neither, or when an input is missing.
    """
    if not {"active_params", "tokens"} <= set(law.inputs):
        raise InputError(f"{law.name} does not read parameters and tokens, so it has no compute-optimal allocation.")
    missing = set(law.inputs) - {"active_params", "tokens", "compute", *(others or {})}
    if missing:
        raise InputError(f"the optimum of {law.name} needs {', '.join(sorted(missing))}; say at which value.")
    product = compute / flops_per_param_token

    def losses(log_n: np.ndarray) -> np.ndarray:
        n = np.exp(log_n)
        x = {"active_params": n, "tokens": product / n, "compute": np.full_like(n, compute)}
        x |= {name: np.full_like(n, value) for name, value in (others or {}).items()}
        return np.asarray(law.predict(theta, x))

    logs = np.log(np.geomspace((product / SPAN[1]) ** 0.5, (product / SPAN[0]) ** 0.5, GRID))
    best = int(np.argmin(losses(logs)))
    low, high = logs[max(best - 1, 0)], logs[min(best + 1, GRID - 1)]
    for _ in range(REFINEMENTS):
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        f = losses(np.array([left, right]))
        low, high = (low, right) if f[0] < f[1] else (left, high)
    n = float(np.exp((low + high) / 2))
    loss = float(losses(np.log([n]))[0])
    return Allocation(compute, n, product / n, loss, 0 < best < GRID - 1)
