"""Which leaf of a model is trained how: by the name of its field and its rank, and loudly where neither is known."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import jax
from jaxtyping import PyTree

from ladder.recipe_interface import MuonPlan, OptimizerPlan
from models.support import OPTIMIZERS


class Group(StrEnum):
    """How a parameter is trained."""

    ADAM = "adam"  # at the Adam rate, never decayed
    ADAMW = "adamw"  # a matrix by Adam at the matrix rate, with decoupled weight decay
    ADAMH = "adamh"  # a matrix along Adam's direction, its norm kept
    MUONH = "muonh"  # a matrix along its orthogonalised momentum, its norm kept


# Marin's: matrices and GatedNorms keep their norms; embedding, router, attention gate, gains and convolutions do not.
# AdamW decays the same matrices: what sets scales or is looked up by row is left alone, as is customary.
MATRICES = frozenset(
    ("qkv", "out", "gate_up", "down", "head", "latent_down", "latent_up", "norm_down", "norm_up"),
)
REST = frozenset(
    (
        *("embedding", "router", "gate", "key_conv", "out_conv", "mlp_conv", "query_gain", "key_gain"),
        *("attention_norm", "expert_norm", "head_norm", "embedding_norm", "latent_norm"),
    )
)


@dataclass(frozen=True)
class Method:
    """What of an optimizer decides the program: its name, and what MuonH needs besides rates."""

    name: str = "adamh"
    muon: MuonPlan | None = None

    @staticmethod
    def of(plan: OptimizerPlan) -> "Method":
        """Return the method of `plan`."""
        return Method(plan.name, plan.muon)


ADAMH = Method()  # of the recipe tiny-cpu


def group_of(path: Any, leaf: Any, method: Method) -> Group:
    """Return the group of the leaf, an array or its shape, at `path`, by the name of the field that holds it.

    Raises ValueError for a field that is neither in MATRICES nor in REST, and for a vector that should be a matrix.
    """
    name = str(getattr(path[-1], "name", path[-1]))
    if name not in MATRICES | REST:
        raise ValueError(f"parameter {jax.tree_util.keystr(path)} is in no optimizer group; add {name!r} to one.")
    if name in REST:
        return Group.ADAM
    if leaf.ndim < 2:
        raise ValueError(f"parameter {jax.tree_util.keystr(path)} has shape {leaf.shape} but is trained as a matrix.")
    return Group(OPTIMIZERS[method.name][name == "head"])


def parameter_groups(params: PyTree, method: Method) -> PyTree:
    """Return the group of every leaf of `params`; raises what `group_of` raises."""
    return jax.tree_util.tree_map_with_path(lambda path, leaf: group_of(path, leaf, method), params)
