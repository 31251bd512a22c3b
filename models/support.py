"""What this trainer can train. A rung that asks for more is refused: it would be another model under the same name."""

from ladder.errors import InputError
from ladder.recipe_interface import RouterPlan
from ladder.rung import Rung

TINY_ROUTER = RouterPlan("quantile", "topk", 0, 2.0, 0.0)  # of the recipe tiny-cpu
BALANCING = ("quantile", "bias", "auxiliary", "none")
# Optimizer: how its matrices are trained, and the head among them (`models.groups.Group`); the rest always by Adam.
OPTIMIZERS = {
    "adam": ("adamw", "adamw"),
    "adamw": ("adamw", "adamw"),
    "adamh": ("adamh", "adamh"),
    "muonh": ("muonh", "adamh"),
}


def check_trainable(rung: Rung) -> None:
    """Raise InputError naming what `rung` asks for and runs cannot do."""
    plan, router = rung.optimizer, rung.router
    asked = {
        f"optimizer {plan.name!r}": plan.name not in OPTIMIZERS,
        f"head_lr={plan.head_lr} with optimizer {plan.name}": plan.head_lr is not None and plan.name != "muonh",
        f"optimizer muonh with muon={plan.muon}": plan.name == "muonh" and plan.muon is None,
        f"weight_decay={plan.weight_decay} with optimizer {plan.name}": plan.weight_decay and plan.name != "adamw",
        f"balancing {router.balancing!r}": not rung.shape.dense and router.balancing not in BALANCING,
    }
    if missing := [what for what, wanted in asked.items() if wanted]:
        raise InputError(
            f"rung {rung.name} of recipe {rung.recipe} cannot be trained here: it asks for {', '.join(missing)}. Hand "
            "its ladder to another trainer and import the runs, or use recipe tiny-cpu."
        )
