"""FLOPs of the dot products in a traced function, counted from its jaxpr: the tests' independent count."""

import math
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr


def dot_flops(function: Callable[..., Any], *arguments: Any) -> int:
    """Return two FLOPs per multiply-add of every dot_general in `function`, loops counted by their length."""
    return _count(jax.make_jaxpr(function)(*arguments).jaxpr)


def _count(jaxpr: Jaxpr) -> int:
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            inner = math.prod(left[axis] for axis in contracted)
            total += 2 * inner * math.prod(equation.outvars[0].aval.shape)
        repeats = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        for value in equation.params.values():
            if isinstance(value, ClosedJaxpr):
                total += repeats * _count(value.jaxpr)
            elif isinstance(value, Jaxpr):
                total += repeats * _count(value)
    return total
