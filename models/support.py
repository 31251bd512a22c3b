"""What this trainer can train. A rung that asks for more is refused: it would be another model under the same name."""

from ladder.errors import InputError
from ladder.recipe_interface import RouterPlan
from ladder.rung import Rung

TINY_ROUTER = RouterPlan("quantile", "topk", 0, 2.0, 0.0)  # of the recipe tiny-cpu
# Their rotary frequencies are scaled as in Llama 3, which neither `ladder.attention` nor the model knows.
SCALED_ROTARY = ("delphi-v2",)


def check_trainable(rung: Rung) -> None:
    """Raise InputError naming what `rung` asks for and runs cannot do yet.

    The model knows more routers than a run passes on to it (`models.train.initial_state`).
    """
    optimizer, router = rung.optimizer, rung.router
    asked = {
        "Llama 3's scaling of low rotary frequencies": rung.recipe in SCALED_ROTARY,
        f"optimizer {optimizer.name!r}": optimizer.name != "adamh",
        f"head_lr={optimizer.head_lr}": optimizer.head_lr is not None,
        f"weight_decay={optimizer.weight_decay}": optimizer.weight_decay,
        f"clip_norm={optimizer.clip_norm}": optimizer.clip_norm <= 0,
        f"router {router}": not rung.shape.dense and router != TINY_ROUTER,
    }
    if missing := [what for what, wanted in asked.items() if wanted]:
        raise InputError(
            f"rung {rung.name} of recipe {rung.recipe} cannot be trained here: it asks for {', '.join(missing)}. Hand "
            "its ladder to another trainer and import the runs, or use recipe tiny-cpu."
        )
