"""What layers with experts, latent attention or a state are made of, as data: parts of a `DecoderSpec`."""

from dataclasses import dataclass
from typing import Final, Literal

ExpertActivation = Literal["silu", "clamped", "relu2"]
StateRule = Literal["delta", "mamba2"]
CHOICE_BIAS: Final = "router_choice_bias"
"""Of each expert, in float32 whatever the decoder computes in: 16 bits would change which experts are chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsSpec:
    """Feed-forward layers of many experts, of which a router chooses top_k for each token.

    layers: of each layer whether it has experts, or one feed-forward layer as in other decoders.
    renormalised, sigmoid, groups, top_groups, group_best, scaled_inputs, mixer: as `expert_routing.Routing` has them.
    intermediate_size: of one expert. shared_size: of one more that every token goes through behind a gate of its own; 0
    where there is none. shared_gate: whether it has that gate. scale: of what the chosen give.
    activation: of the experts, also of the shared one, which have no gate with relu2. bias: router and experts have
    biases. choice_bias: experts have one in the choice alone.
    latent_size: width of the space in which experts compute; 0 for that of the hidden state. held: numbers of the
    experts whose matrices a rank has; None where it has those of all.
    """

    layers: tuple[bool, ...]
    num_experts: int
    top_k: int
    intermediate_size: int
    renormalised: bool
    sigmoid: bool = False
    groups: int = 1
    top_groups: int = 1
    group_best: int = 1
    scaled_inputs: bool = False
    mixer: float = 0.0
    shared_size: int = 0
    shared_gate: bool = True
    scale: float = 1.0
    activation: ExpertActivation = "silu"
    bias: bool = False
    choice_bias: bool = False
    latent_size: int = 0
    held: range | None = None

    @property
    def first(self) -> tuple[str, int]:
        """What the tensor is called that an expert's first product is with, and how many numbers that gives for each of
        intermediate_size.
        """
        return ("up", 1) if self.activation == "relu2" else ("gate_up", 2)

    @property
    def num_held(self) -> int:
        """Experts whose matrices a rank has."""
        return self.num_experts if self.held is None else len(self.held)


@dataclass(frozen=True, slots=True, kw_only=True)
class TemperatureSpec:
    """Queries grow with their position: times 1 + scale * log(1 + floor((position + first) / step)).

    step: in tokens. first: number of the first position. Nakanishi 2025 (scalable softmax), in steps as Llama 4 has it.
    """

    scale: float
    step: float
    first: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentSpec:
    """Layers whose tokens have one compressed row for all heads: a latent of rank numbers and a key that turns.

    key_dim, value_dim: of a head's key that does not turn and of its value, which follow from the latent. query_rank:
    of the latent that queries follow from; 0 where they follow from the hidden state.
    """

    rank: int
    rope_dim: int
    key_dim: int
    value_dim: int
    query_rank: int = 0

    @property
    def row(self) -> int:
        """Numbers of a token in the cache."""
        return self.rank + self.rope_dim

    def query_rows(self, num_heads: int) -> int:
        """Of the projection to queries."""
        return num_heads * (self.key_dim + self.rope_dim)

    def up_rows(self, num_heads: int) -> int:
        """Of the projection from latents to keys and values."""
        return num_heads * (self.key_dim + self.value_dim)

    def parameter_shapes(self, hidden: int, heads: int) -> dict[str, tuple[int, ...]]:
        """Of the tensors of one layer. hidden: size of the hidden state.

        qkv: queries or their latent, the latent, the key that turns. latent_up: for each head its key and its value.
        """
        rows = self.query_rows(heads)
        shapes: dict[str, tuple[int, ...]] = {"qkv.weight": ((self.query_rank or rows) + self.row, hidden)}
        if self.query_rank:
            shapes |= {"query_norm": (self.query_rank,), "query_up.weight": (rows, self.query_rank)}
        shapes |= {"latent_norm": (self.rank,), "latent_up": (self.up_rows(heads), self.rank)}
        return shapes | {"output.weight": (hidden, heads * self.value_dim)}


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpec:
    """Layers with a state in place of keys and values: a short convolution, and a rule by which states change.

    rule: the gated delta rule as Qwen3-Next has it, or Mamba-2's, whose keys, queries and values are called B, C and x,
    and key heads groups. conv_width: positions that the convolution sees, the token's own included. Each key head has
    value_heads / key_heads value heads. by_key_head: with the delta rule the first projection has the rows of each key
    head side by side. conv_bias, bias: whether the convolution has one, and the two projections. normed: what comes out
    has a norm behind its gate. row_scales: of Mamba-2, what gates, x, B, C and steps are multiplied with; () for none.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int
    rule: StateRule = "delta"
    by_key_head: bool = True
    conv_bias: bool = False
    bias: bool = False
    normed: bool = True
    row_scales: tuple[float, ...] = ()

    @property
    def key_width(self) -> int:
        """Of all key heads together, and of all query heads."""
        return self.key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        """Of all value heads together."""
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """What the convolution goes over: queries, keys and values."""
        return 2 * self.key_width + self.value_width

    @property
    def numbers(self) -> int:
        """Float32 numbers of the state of one layer, as `kernels.gated_delta` lays them out."""
        return (self.conv_width - 1) * self.channels + self.value_heads * self.key_dim * self.value_dim

    def parameter_shapes(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """Of the tensors of one layer. hidden: size of the hidden state.

        qkv: with the delta rule for each key head its query, its key, its values and their gates; then for each its
        betas and its decays; or all queries, keys, values, gates, betas and decays in turn. Of
        Mamba-2 gates, x, B, C, and a step for each value head.
        """
        is_delta = self.rule == "delta"
        rows = self.channels + self.value_width + (2 if is_delta else 1) * self.value_heads
        shapes: dict[str, tuple[int, ...]] = {
            "qkv.weight": (rows, hidden),
            "conv": (self.channels, 1, self.conv_width),
            "decay": (self.value_heads,),
            "decay_bias": (self.value_heads,),
            "output.weight": (hidden, self.value_width),
        }
        if self.normed:
            shapes["state_norm"] = (self.value_dim if is_delta else self.value_width,)
        if not is_delta:
            shapes["skip"] = (self.value_heads,)
        if self.conv_bias:
            shapes["conv_bias"] = (self.channels,)
        return shapes | ({"qkv.bias": (rows,), "output.bias": (hidden,)} if self.bias else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class PartScales:
    """What parts of layers are multiplied with. attention, state, down: what these give, before it is added; gate: the
    gate of feed-forward layers, before its activation.
    """

    attention: float = 1.0
    state: float = 1.0
    gate: float = 1.0
    down: float = 1.0
