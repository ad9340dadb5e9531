"""What a decoder is made of, as data: the one description that layers build from and weights are checked against.

Families in `models` derive it from a config.json. Nothing here opens a file or makes a tensor.
"""

from dataclasses import dataclass
from typing import Literal

from kvasir_api import cache_groups
from kvasir_api.cache_groups import AttentionKind, CacheGroup, LayerAttention

Head = Literal["vocabulary", "labels", "none"]
Activation = Literal["silu", "gelu"]
RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope", "factors"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary embedding: its base and how it is stretched. Fields that a kind does not use keep their defaults.

    attention_factor multiplies cos and sin (yarn, longrope); 0 means that it follows from factor. factors: what divides
    the frequency of each pair of dimensions (factors, longrope); short_factors: the same where no sequence is longer
    than original_max_position (longrope). rotary_dim: the first so many dimensions of a head turn; 0 means all of them.
    """

    kind: RopeKind = "default"
    theta: float = 10_000.0
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 0.0
    truncate: bool = True
    original_max_position: int = 0
    factors: tuple[float, ...] = ()
    short_factors: tuple[float, ...] = ()
    rotary_dim: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsSpec:
    """Feed-forward layers of many experts, of which a router chooses top_k for each token.

    layers: of each layer whether it has experts, or one feed-forward layer as in other decoders.
    renormalised: the shares of the chosen are scaled to sum 1.
    intermediate_size: of one expert. shared_size: of one more that every token goes through behind a gate of its own; 0
    where there is none. shared_gate: whether it has that gate. scale: of what the chosen give.
    """

    layers: tuple[bool, ...]
    num_experts: int
    top_k: int
    intermediate_size: int
    renormalised: bool
    shared_size: int = 0
    shared_gate: bool = True
    scale: float = 1.0


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


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpec:
    """Layers with a state in place of keys and values: a short convolution and the gated delta rule.

    conv_width: positions that the convolution sees, the token's own included. Each key head has value_heads / key_heads
    value heads.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int

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


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """One decoder-only transformer with pre-normalisation, grouped attention and a gated feed-forward layer.

    attentions: per layer, what a token sees of those before it.
    head: what the last hidden states go through: to logits over the vocabulary, to those of num_labels labels, or none.
    local_rope: of layers with a window, where it is another than that of the others.
    norms_less_one: norms are stored less 1. outer_norms: what attention and feed-forward layers give is normalised too,
    before it is added. embedding_scale: 1 leaves embeddings. attention_scale: of scores, 0 means head_dim ** -0.5.
    attention_cap, logit_cap: the size that scores and logits stay within by a hyperbolic tangent; 0 leaves them.
    gated_attention: what attention gives is multiplied with a gate of its own for each number, which lies behind the
    queries of its head. state, latent: of the layers whose attention is a state, or latent; with the latter head_dim is
    of the part that turns.
    """

    vocab_size: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    attentions: tuple[LayerAttention, ...]
    rope: RopeSpec
    norm_eps: float
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tied_embeddings: bool = False
    head: Head = "vocabulary"
    num_labels: int = 0
    experts: ExpertsSpec | None = None
    activation: Activation = "silu"
    local_rope: RopeSpec | None = None
    norms_less_one: bool = False
    outer_norms: bool = False
    embedding_scale: float = 1.0
    attention_scale: float = 0.0
    attention_cap: float = 0.0
    logit_cap: float = 0.0
    gated_attention: bool = False
    state: StateSpec | None = None
    latent: LatentSpec | None = None

    @property
    def usual(self) -> bool:
        """Whether the layers are those of Llama with biases, norms of heads and windows at most: what C++ computes."""
        caps = (self.attention_cap, self.logit_cap)
        changed = (*caps, self.outer_norms, self.attention_scale, self.local_rope, self.norms_less_one)
        others = self.gated_attention or self.state is not None or self.latent is not None
        return not (any(changed) or others) and self.activation == "silu" and self.embedding_scale == 1

    @property
    def head_rows(self) -> int:
        """Rows of the head's own matrix; 0 where it has none."""
        rows = {"vocabulary": 0 if self.tied_embeddings else self.vocab_size, "labels": self.num_labels, "none": 0}
        return rows[self.head]

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return len(self.attentions)

    @property
    def head_order(self) -> tuple[int, ...]:
        """Which dimension of a checkpoint's head each of ours is; () where they are the same.

        Kernels turn dimension i with i + head_dim / 2. Where only the first rotary_dim turn, i with i + rotary_dim / 2,
        both halves of those come to the beginning of ours. Scores do not change with the order of dimensions.
        """
        turned, dim = self.rope.rotary_dim, self.head_dim
        if not turned:
            return ()
        fixed = (dim - turned) // 2
        halves = (
            range(turned // 2),
            range(turned, turned + fixed),
            range(turned // 2, turned),
            range(turned + fixed, dim),
        )
        return tuple(index for part in halves for index in part)

    def experts_of(self, layer: int) -> ExpertsSpec | None:
        """The experts of a layer, None where it has one feed-forward layer."""
        return self.experts if self.experts is not None and self.experts.layers[layer] else None

    @property
    def query_dim(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def query_rows(self) -> int:
        """Rows of the projection to queries, and to the gates behind those of each head."""
        return self.query_dim * (2 if self.gated_attention else 1)

    @property
    def kv_dim(self) -> int:
        """Width of all key (or value) heads together."""
        return self.num_kv_heads * self.head_dim

    @property
    def cache_groups(self) -> tuple[CacheGroup, ...]:
        """Which layers share blocks of the cache."""
        return cache_groups.group_layers(self.attentions)

    def kv_bytes_per_token(self, element_bytes: int, scale_bytes: int = 0, block_size: int = 16) -> int:
        """Bytes of KV cache of one token in every layer, and what blocks leave empty for it.

        scale_bytes: beside each head's numbers. block_size: matters only to layers with a state.
        """
        groups = self.cache_groups
        return cache_groups.bytes_per_token(
            [group.attention for group in groups],
            [len(group.layers) for group in groups],
            token_bytes=self._token_bytes(element_bytes, scale_bytes),
            state_bytes=self.state_bytes,
            block_size=block_size,
        )

    def block_size(self, wanted: int, element_bytes: int, scale_bytes: int = 0) -> int:
        """Tokens of a block: as many as wanted, or more, so that a state fits into as much memory."""
        token_bytes = self._token_bytes(element_bytes, scale_bytes)
        return max(wanted, cache_groups.least_block_size(token_bytes=token_bytes, state_bytes=self.state_bytes))

    @property
    def state_bytes(self) -> int:
        """Of the state of one layer; 0 where none has one."""
        return 4 * self.state.numbers if self.state is not None else 0

    def _token_bytes(self, element_bytes: int, scale_bytes: int) -> int:
        """Of one token in one layer with keys and values."""
        if self.latent is not None:
            return self.latent.row * element_bytes + scale_bytes
        return 2 * self.num_kv_heads * (self.head_dim * element_bytes + scale_bytes)


def parameter_shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a decoder is built from, merged groups as one tensor."""
    hidden, shapes = spec.hidden_size, dict[str, tuple[int, ...]]()
    shapes["embedding"] = (spec.vocab_size, hidden)
    for layer in range(spec.num_layers):
        prefix = f"layers.{layer}."
        shapes[prefix + "attention_norm"] = (hidden,)
        shapes |= {prefix + name: shape for name, shape in _attention(spec, spec.attentions[layer].kind).items()}
        shapes[prefix + "mlp_norm"] = (hidden,)
        if spec.outer_norms:
            shapes[prefix + "attention_outer_norm"] = shapes[prefix + "mlp_outer_norm"] = (hidden,)
        experts = spec.experts_of(layer)
        shapes |= _feed_forward(prefix, spec) if experts is None else _experts(prefix, hidden, experts)
    shapes["norm"] = (hidden,)
    if spec.head_rows:
        shapes["head.weight"] = (spec.head_rows, hidden)
    return shapes


def _attention(spec: DecoderSpec, kind: AttentionKind) -> dict[str, tuple[int, ...]]:
    if kind == "state" and spec.state is not None:
        return _state(spec.hidden_size, spec.state)
    if kind == "latent" and spec.latent is not None:
        return _latent(spec.hidden_size, spec.num_heads, spec.latent)
    rows = spec.query_rows + 2 * spec.kv_dim
    shapes: dict[str, tuple[int, ...]] = {"qkv.weight": (rows, spec.hidden_size)}
    if spec.qkv_bias:
        shapes["qkv.bias"] = (rows,)
    if spec.qk_norm:
        shapes["query_norm"] = shapes["key_norm"] = (spec.head_dim,)
    shapes["output.weight"] = (spec.hidden_size, spec.query_dim)
    if spec.output_bias:
        shapes["output.bias"] = (spec.hidden_size,)
    return shapes


def _latent(hidden: int, heads: int, latent: LatentSpec) -> dict[str, tuple[int, ...]]:
    """qkv: queries or their latent, the latent, the key that turns. latent_up: for each head its key and its value."""
    rows = latent.query_rows(heads)
    shapes: dict[str, tuple[int, ...]] = {"qkv.weight": ((latent.query_rank or rows) + latent.row, hidden)}
    if latent.query_rank:
        shapes |= {"query_norm": (latent.query_rank,), "query_up.weight": (rows, latent.query_rank)}
    shapes |= {"latent_norm": (latent.rank,), "latent_up": (latent.up_rows(heads), latent.rank)}
    return shapes | {"output.weight": (hidden, heads * latent.value_dim)}


def _state(hidden: int, state: StateSpec) -> dict[str, tuple[int, ...]]:
    """qkv: for each key head its query, its key, its values and their gates; then for each its betas and its decays."""
    return {
        "qkv.weight": (state.channels + state.value_width + 2 * state.value_heads, hidden),
        "conv": (state.channels, 1, state.conv_width),
        "decay": (state.value_heads,),
        "decay_bias": (state.value_heads,),
        "state_norm": (state.value_dim,),
        "output.weight": (hidden, state.value_width),
    }


def _feed_forward(prefix: str, spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    hidden, inner = spec.hidden_size, spec.intermediate_size
    weights: dict[str, tuple[int, ...]] = {"gate_up.weight": (2 * inner, hidden), "down.weight": (hidden, inner)}
    biases: dict[str, tuple[int, ...]] = {"gate_up.bias": (2 * inner,), "down.bias": (hidden,)}
    return {prefix + name: shape for name, shape in (weights | (biases if spec.mlp_bias else {})).items()}


def _experts(prefix: str, hidden: int, experts: ExpertsSpec) -> dict[str, tuple[int, ...]]:
    """Experts lie one below the other. What is no .weight is never quantized: the router's numbers decide."""
    each, inner, shared = experts.num_experts, experts.intermediate_size, experts.shared_size
    shapes: dict[str, tuple[int, ...]] = {
        prefix + "router": (each, hidden),
        prefix + "experts.gate_up.weight": (each * 2 * inner, hidden),
        prefix + "experts.down.weight": (each * hidden, inner),
    }
    if shared and experts.shared_gate:
        shapes[prefix + "shared_gate"] = (1, hidden)
    if shared:
        shapes[prefix + "shared.gate_up.weight"] = (2 * shared, hidden)
        shapes[prefix + "shared.down.weight"] = (hidden, shared)
    return shapes
