"""What this trainer can train. A rung that asks for more is refused: it would be another model under the same name."""

from ladder.attention import AttentionPattern
from ladder.errors import InputError
from ladder.rung import Rung

WEIGHT_SUM = 2.0  # the K routing weights of a token add up to it


def check_trainable(rung: Rung) -> None:
    """Raise InputError naming what `rung` asks for and this trainer does not do."""
    shape, optimizer, router = rung.shape, rung.optimizer, rung.router
    asked = {
        "experts=0 (a dense model)": shape.dense,
        f"latent_width={shape.latent_width}": shape.latent_width,
        f"gated_norm_rank={shape.gated_norm_rank}": shape.gated_norm_rank,
        "embedding_norm": shape.embedding_norm,
        f"short_conv={shape.short_conv}": shape.short_conv,
        "attention other than causal, rotary and plain": shape.attention
        != AttentionPattern(rope_theta=shape.attention.rope_theta),
        f"optimizer {optimizer.name!r}": optimizer.name != "adamh",
        f"head_lr={optimizer.head_lr}": optimizer.head_lr is not None,
        f"weight_decay={optimizer.weight_decay}": optimizer.weight_decay,
        f"clip_norm={optimizer.clip_norm}": optimizer.clip_norm <= 0,
        f"router balancing {router.balancing!r} by {router.estimator!r}": (router.balancing, router.estimator)
        != ("quantile", "topk"),
        f"router weight_sum={router.weight_sum}": router.weight_sum != WEIGHT_SUM,
        f"router z_loss={router.z_loss}": router.z_loss,
    }
    if missing := [what for what, wanted in asked.items() if wanted]:
        raise InputError(
            f"rung {rung.name} of recipe {rung.recipe} cannot be trained here: it asks for {', '.join(missing)}. Hand "
            "its ladder to another trainer and import the runs, or use recipe tiny-cpu."
        )
