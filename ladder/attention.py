"""How the layers of a model attend: windows, positions, gates. Only what decides counts, FLOPs or identity."""

from dataclasses import dataclass

from ladder.errors import InputError


@dataclass(frozen=True)
class AttentionPattern:
    """Which layers see the whole sequence, how positions enter, and which small parts attention carries.

    The default is plain causal attention with rotary positions on every layer.

    Attributes:
        window: keys a query sees on a local layer, itself included; 0 when every layer is global.
        global_every: every n-th layer (the n-th, 2n-th, ... counted from 1) is global; 0 for none.
        last_global: whether the last layer is global as well.
        global_kv_heads: key and value heads in use on global layers; 0 for as many as on local ones. The matrices
            are stored at the larger of the two.
        rope_theta: base of the rotary frequencies.
        rope_fraction: leading share of each head that is rotated.
        rope_scaling: ``"llama3"`` where low rotary frequencies are divided by 8, as in Llama 3.1 (`models.attention`
            has the formula); empty for none.
        global_rope: whether global layers rotate at all.
        key_offset: whether global layers shift the unrotated part of the keys by one position (PKO).
        gate: whether each head's output is scaled by a sigmoid of the layer's input, one vector per head.
        qk_gains: whether the norms of queries and keys have learned gains, shared by the heads of a layer.
        exclusive: whether each head's output is made orthogonal to its own value (XSA).
    """

    window: int = 0
    global_every: int = 0
    last_global: bool = False
    global_kv_heads: int = 0
    rope_theta: float = 1e4
    rope_fraction: float = 1.0
    global_rope: bool = True
    key_offset: bool = False
    gate: bool = False
    qk_gains: bool = False
    exclusive: bool = False
    rope_scaling: str = ""

    def __post_init__(self) -> None:
        for name in ("window", "global_every", "global_kv_heads"):
            if getattr(self, name) < 0:
                raise InputError(f"{name}={getattr(self, name)} must not be negative; 0 turns it off.")
        if not self.window and (self.global_every or self.last_global or self.global_kv_heads):
            raise InputError(
                "global_every, last_global and global_kv_heads tell global layers from local ones, but window=0 makes "
                "every layer global; set a window, or leave them at their defaults."
            )
        if self.rope_scaling not in ("", "llama3"):
            raise InputError(f"rope_scaling={self.rope_scaling!r} is not known; use llama3, or leave it empty.")
        if not (0 < self.rope_fraction <= 1 and self.rope_theta > 0):
            raise InputError(
                f"rope_fraction={self.rope_fraction} must be above 0 and at most 1, and rope_theta={self.rope_theta} "
                "positive."
            )

    def global_layers(self, layers: int) -> int:
        """Return how many of `layers` layers are global.

        >>> AttentionPattern(window=2048, global_every=4, last_global=True).global_layers(22)  # not 22 // 4
        6
        """
        if not self.window:
            return layers
        periodic = layers // self.global_every if self.global_every else 0
        last_is_periodic = self.global_every and layers % self.global_every == 0
        return periodic + int(self.last_global and not last_is_periodic)

    def is_global(self, layer: int, layers: int) -> bool:
        """Return whether layer number `layer`, counted from 0, of `layers` is global."""
        periodic = self.global_every > 0 and (layer + 1) % self.global_every == 0
        return not self.window or periodic or (self.last_global and layer == layers - 1)


PLAIN_ATTENTION = AttentionPattern()  # every layer global, rotary positions throughout
