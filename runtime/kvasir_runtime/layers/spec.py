"""What a decoder is made of, as data: the one description that layers build from and weights are checked against.

Families in `models` derive it from a config.json. Nothing here opens a file or makes a tensor.
"""

from dataclasses import dataclass
from typing import Final, Literal

from kvasir_api import cache_groups
from kvasir_api.cache_groups import AttentionKind, CacheGroup, LayerAttention
from kvasir_runtime.layers.encoder_spec import EncoderSpec
from kvasir_runtime.layers.layer_specs import (
    CHOICE_BIAS,
    ExpertsSpec,
    LatentSpec,
    PartScales,
    StateSpec,
    TemperatureSpec,
)
from kvasir_runtime.layers.rank import Rank

Head = Literal["vocabulary", "labels", "none"]
Activation = Literal["silu", "gelu", "gelu_erf", "relu2", "xielu"]
NormKind = Literal["rms", "layer"]
MlpBias = bool | Literal["down"]  # of the last product alone
RopeKind = Literal["default", "none", "linear", "dynamic", "llama3", "yarn", "longrope", "factors"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary embedding: its base and how it is stretched. Fields that a kind does not use keep their defaults.

    attention_factor multiplies cos and sin (yarn, longrope); 0 means that it follows from factor. factors: what divides
    the frequency of each pair of dimensions (factors, longrope); short_factors: the same where no sequence is longer
    than original_max_position (longrope). rotary_dim: the first so many dimensions of a head turn; 0 means all of them.
    interleaved: checkpoints turn pairs of neighbours.
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
    interleaved: bool = False


_PLAIN: Final = PartScales()
_WHOLE: Final = Rank()


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """One transformer with pre-normalisation, grouped attention and a gated feed-forward layer: a decoder or encoder.

    attentions: per layer, what a token sees of those before it.
    head: what the last hidden states go through: to logits over the vocabulary, to those of num_labels labels, or none.
    local_rope: of local_layers, where it is another than that of the others; these are those with a window or chunks
    where None names no others. plain_qk_norm: queries and keys of layers with a window or chunks have a norm without
    weights. norm_behind_rope: norms of heads come behind the rotation. temperature: of queries of layers without
    chunks, None where they do not grow.
    norms_less_one: norms are stored less 1. outer_norms: what attention and feed-forward layers give is normalised too,
    before it is added. embedding_scale: 1 leaves embeddings. attention_scale: of scores, 0 means head_dim ** -0.5.
    attention_cap, logit_cap: the size that scores and logits stay within by a hyperbolic tangent; 0 leaves them.
    gated_attention: what attention gives is multiplied with a gate of its own for each number, which lies behind the
    queries of its head. sinks: each head has a score more that no value belongs to. alibi: of each head what scores
    lose with each position of distance, () without. qkv_clip: the size that queries, keys and values stay within; 0
    leaves them. state, latent: of the layers whose attention is a state, or latent; with the latter head_dim is of the
    part that turns.
    norm, norm_bias: of the layers and behind them. pre_norms: attention and feed-forward layers have a norm before
    them. wide_qk_norm: queries of all heads have one norm, and so have keys. own_qk_norm: each query and key head has
    one of the mean too, with weights of its own. parallel: feed-forward layers read the residual that attention reads,
    and both are added at once; shared_norm: behind one norm. gated_mlp: feed-forward
    layers have a gate. embedding_norm: embeddings have one. normalised_head: rows of the head are scaled to length 1.
    head_bias: the head's own matrix has a bias.
    residual_scale: of what is added to the residual. logit_scale: of logits, before a cap. doubled_input: queries, keys
    and values follow from two hidden states side by side, of which `Batch.beside` has the second. encoder: what an
    encoder has beside. bare: layers that have no feed-forward layer. joined: layers that read what the layer before
    them reads, and have no norm of their own for it. part_scales: of layers, beside residual_scale. rank: whose part
    this is. Heads and intermediate sizes are those of the part, all other sizes those of the decoder. stage: the
    consecutive layers that a process has where others have the rest; None: all.
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
    mlp_bias: MlpBias = False
    qk_norm: bool = False
    tied_embeddings: bool = False
    head: Head = "vocabulary"
    num_labels: int = 0
    experts: ExpertsSpec | None = None
    activation: Activation = "silu"
    local_rope: RopeSpec | None = None
    local_layers: frozenset[int] | None = None
    plain_qk_norm: bool = False
    norm_behind_rope: bool = False
    temperature: TemperatureSpec | None = None
    norms_less_one: bool = False
    outer_norms: bool = False
    embedding_scale: float = 1.0
    attention_scale: float = 0.0
    attention_cap: float = 0.0
    logit_cap: float = 0.0
    gated_attention: bool = False
    sinks: bool = False
    alibi: tuple[float, ...] = ()
    qkv_clip: float = 0.0
    state: StateSpec | None = None
    latent: LatentSpec | None = None
    norm: NormKind = "rms"
    norm_bias: bool = False
    pre_norms: bool = True
    wide_qk_norm: bool = False
    own_qk_norm: bool = False
    parallel: bool = False
    shared_norm: bool = False
    gated_mlp: bool = True
    embedding_norm: bool = False
    bare: frozenset[int] = frozenset()
    joined: frozenset[int] = frozenset()
    part_scales: PartScales = _PLAIN
    normalised_head: bool = False
    head_bias: bool = False
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    doubled_input: bool = False
    encoder: EncoderSpec | None = None
    rank: Rank = _WHOLE
    stage: range | None = None

    @property
    def layers(self) -> range:
        """Those of this process."""
        return range(self.num_layers) if self.stage is None else self.stage

    @property
    def is_first(self) -> bool:
        """Whether this process has the table of embeddings and the head."""
        return self.layers.start == 0

    @property
    def is_last(self) -> bool:
        """Whether this process has the last norm."""
        return self.layers.stop == self.num_layers

    @property
    def divided(self) -> bool:
        """Whether other processes have parts of this decoder."""
        return self.rank.count > 1 or self.stage is not None

    @property
    def usual(self) -> bool:
        """Whether the layers are those of Llama with biases, norms of heads and behind layers, windows, caps,
        factors, a gate of GELU and experts at most, and whole: what C++ computes.
        """
        parts = (self.state, self.latent, self.encoder, self.temperature)
        scores = self.gated_attention or self.sinks or bool(self.alibi or self.qkv_clip or self.plain_qk_norm)
        others = scores or any(part is not None for part in parts) or self.divided or self.embedding_norm
        norms = self.norm == "rms" and self.pre_norms and not (self.wide_qk_norm or self.norm_behind_rope)
        plain = (
            self.activation in ("silu", "gelu")
            and self.gated_mlp
            and not (self.parallel or self.doubled_input or self.head_bias)
        )
        return plain and norms and not others

    def vocabulary_of(self, rank: int) -> range:
        """Ids whose rows of the table, and of a head over the vocabulary, a rank has."""
        each = self.vocab_size
        return range(each * rank // self.rank.count, each * (rank + 1) // self.rank.count)

    @property
    def vocab_rows(self) -> int:
        """Rows of the table."""
        return len(self.vocabulary_of(self.rank.index))

    @property
    def head_rows(self) -> int:
        """Rows of the head's own matrix; 0 where it has none."""
        rows = {"vocabulary": 0 if self.tied_embeddings else self.vocab_rows, "labels": self.num_labels, "none": 0}
        return rows[self.head]

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return len(self.attentions)

    @property
    def head_order(self) -> tuple[int, ...]:
        """Which dimension of a checkpoint's head each of ours is; () where they are the same.

        Kernels turn dimension i with i + head_dim / 2. Where only the first rotary_dim turn, i with i + rotary_dim / 2,
        both halves of those come to the beginning of ours; of neighbours the first ones. Scores do not change with the
        order of dimensions.
        """
        rope, dim = self.rope, self.head_dim
        turned = rope.rotary_dim or dim
        fixed = (dim - turned) // 2
        first, second = range(turned // 2), range(turned // 2, turned)
        if rope.interleaved:
            first, second = range(0, turned, 2), range(1, turned, 2)
        order = (*first, *range(turned, turned + fixed), *second, *range(turned + fixed, dim))
        return () if order == tuple(range(dim)) else order

    def is_local(self, layer: int) -> bool:
        """Whether a layer turns by local_rope, if there is one."""
        return self.attentions[layer].span > 0 if self.local_layers is None else layer in self.local_layers

    def experts_of(self, layer: int) -> ExpertsSpec | None:
        """The experts of a layer, None where it has one feed-forward layer."""
        return self.experts if self.experts is not None and self.experts.layers[layer] else None

    def scales_of(self, layer: int) -> tuple[float, float]:
        """What is multiplied with what a layer's attention and feed-forward layer give."""
        own = self.part_scales
        first = own.state if self.attentions[layer].kind == "state" else own.attention
        return first * self.residual_scale, own.down * self.residual_scale

    @property
    def query_dim(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def query_rows(self) -> int:
        """Rows of the projection to queries, and to the gates behind those of each head."""
        return self.query_dim * (2 if self.gated_attention else 1)

    @property
    def qkv_columns(self) -> int:
        """Numbers that queries, keys and values of a token follow from."""
        return self.hidden_size * (2 if self.doubled_input else 1)

    @property
    def kv_dim(self) -> int:
        """Width of all key (or value) heads together."""
        return self.num_kv_heads * self.head_dim

    @property
    def qk_norm_shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of the weights of norms of queries, and of keys."""
        if self.own_qk_norm:
            return (self.num_heads, self.head_dim), (self.num_kv_heads, self.head_dim)
        return ((self.query_dim,), (self.kv_dim,)) if self.wide_qk_norm else ((self.head_dim,), (self.head_dim,))

    @property
    def cache_groups(self) -> tuple[CacheGroup, ...]:
        """Which layers share blocks of the cache."""
        return cache_groups.group_layers(self.attentions)

    @property
    def cached_layers(self) -> tuple[tuple[int, ...], ...]:
        """Of each cache group the layers of this process, counted from its first one; a stage may lack a group."""
        own = self.layers
        return tuple(tuple(own.index(layer) for layer in group.layers if layer in own) for group in self.cache_groups)

    def kv_bytes_per_token(self, element_bytes: float, scale_bytes: int = 0, block_size: int = 16) -> int:
        """Bytes of KV cache of one token in every layer of this process, and what blocks leave empty for it.

        scale_bytes: beside each head's numbers. block_size: matters only to layers with a state.
        """
        groups = self.cache_groups
        return cache_groups.bytes_per_token(
            [group.attention for group in groups],
            [len(layers) for layers in self.cached_layers],
            token_bytes=self._token_bytes(element_bytes, scale_bytes),
            state_bytes=self.state_bytes,
            block_size=block_size,
        )

    def block_size(self, wanted: int, element_bytes: float, scale_bytes: int = 0) -> int:
        """Tokens of a block: as many as wanted, or more, so that a state fits into as much memory."""
        token_bytes = self._token_bytes(element_bytes, scale_bytes)
        return max(wanted, cache_groups.least_block_size(token_bytes=token_bytes, state_bytes=self.state_bytes))

    @property
    def state_bytes(self) -> int:
        """Of the state of one layer; 0 where none has one."""
        return 4 * self.state.numbers if self.state is not None else 0

    def _token_bytes(self, element_bytes: float, scale_bytes: int) -> int:
        """Of one token in one layer with keys and values; an encoder keeps none."""
        if self.encoder is not None:
            return 0
        if self.latent is not None:
            return int(self.latent.row * element_bytes) + scale_bytes
        return 2 * self.num_kv_heads * (int(self.head_dim * element_bytes) + scale_bytes)


def parameter_shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a decoder is built from, merged groups as one tensor."""
    hidden, shapes = spec.hidden_size, dict[str, tuple[int, ...]]()
    if spec.is_first:
        shapes["embedding"] = (spec.vocab_rows, hidden)
    if spec.embedding_norm and spec.is_first:
        shapes |= _norm("embedding_norm", spec)
    for layer in spec.layers:
        prefix = f"layers.{layer}."
        for name in layer_norms(spec, layer):
            shapes |= _norm(prefix + name, spec)
        shapes |= {prefix + name: shape for name, shape in _attention(spec, spec.attentions[layer].kind).items()}
        experts = spec.experts_of(layer)
        if layer not in spec.bare:
            shapes |= _feed_forward(prefix, spec) if experts is None else _experts(prefix, hidden, experts)
    if spec.is_last:
        shapes |= _norm("norm", spec)
    if spec.head_rows:
        shapes["head.weight"] = (spec.head_rows, hidden)
        shapes |= {"head.bias": (spec.head_rows,)} if spec.head_bias else {}
    if (own := spec.encoder) is not None:
        shapes |= own.parameter_shapes(hidden, spec.num_heads, spec.num_labels, norm_bias=spec.norm_bias)
    return shapes


def layer_norms(spec: DecoderSpec, layer: int) -> tuple[str, ...]:
    """Norms of the hidden state that a layer has."""
    last = 1 if spec.shared_norm or layer in spec.bare else 2
    before = ("attention_norm", "mlp_norm")[layer in spec.joined : last] if spec.pre_norms else ()
    count = 2 if spec.outer_norms else int(spec.encoder is not None and spec.encoder.sums_twice)
    return (*before, *("attention_outer_norm", "mlp_outer_norm")[:count])


def _norm(name: str, spec: DecoderSpec, *shape: int) -> dict[str, tuple[int, ...]]:
    shape = shape or (spec.hidden_size,)
    return {name: shape, f"{name}.bias": shape} if spec.norm_bias else {name: shape}


def _attention(spec: DecoderSpec, kind: AttentionKind) -> dict[str, tuple[int, ...]]:
    if kind == "state" and spec.state is not None:
        return spec.state.parameter_shapes(spec.hidden_size)
    if kind == "latent" and spec.latent is not None:
        return spec.latent.parameter_shapes(spec.hidden_size, spec.num_heads)
    rows = spec.query_rows + 2 * spec.kv_dim
    shapes: dict[str, tuple[int, ...]] = {"qkv.weight": (rows, spec.qkv_columns)}
    if spec.qkv_bias:
        shapes["qkv.bias"] = (rows,)
    if spec.qk_norm:
        query, key = spec.qk_norm_shapes
        shapes |= _norm("query_norm", spec, *query) | _norm("key_norm", spec, *key)
    if spec.sinks:
        shapes["sinks"] = (spec.num_heads,)
    shapes["output.weight"] = (spec.hidden_size, spec.query_dim)
    if spec.output_bias:
        shapes["output.bias"] = (spec.hidden_size,)
    return shapes


def _feed_forward(prefix: str, spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    hidden, inner = spec.hidden_size, spec.intermediate_size
    name, rows = ("gate_up", 2 * inner) if spec.gated_mlp else ("up", inner)
    weights: dict[str, tuple[int, ...]] = {f"{name}.weight": (rows, hidden), "down.weight": (hidden, inner)}
    first = {f"{name}.bias": (rows,)} if spec.mlp_bias is True else {}
    biases: dict[str, tuple[int, ...]] = {**first, "down.bias": (hidden,)}
    curve: dict[str, tuple[int, ...]] = {"curve": (4,)} if spec.activation == "xielu" else {}
    return {prefix + name: shape for name, shape in (weights | (biases if spec.mlp_bias else {}) | curve).items()}


def _experts(prefix: str, hidden: int, experts: ExpertsSpec) -> dict[str, tuple[int, ...]]:
    """Experts lie one below the other. What is no .weight is never quantized: the router's numbers decide."""
    every, held, inner, shared = experts.num_experts, experts.num_held, experts.intermediate_size, experts.shared_size
    (first, times), width = experts.first, experts.latent_size or hidden
    shapes: dict[str, tuple[int, ...]] = {
        prefix + "router": (every, hidden),
        f"{prefix}experts.{first}.weight": (held * times * inner, width),
        prefix + "experts.down.weight": (held * width, inner),
    }
    if experts.bias:
        shapes[prefix + "router_bias"] = (every,)
        shapes |= {prefix + "experts.gate_up.bias": (held * 2 * inner,), prefix + "experts.down.bias": (held * hidden,)}
    if experts.choice_bias:
        shapes[prefix + CHOICE_BIAS] = (every,)
    if experts.latent_size:
        shapes |= {prefix + "latent_in.weight": (width, hidden), prefix + "latent_out.weight": (hidden, width)}
    if shared and experts.shared_gate:
        shapes[prefix + "shared_gate"] = (1, hidden)
    if shared:
        shapes[f"{prefix}shared.{first}.weight"] = (times * shared, hidden)
        shapes[prefix + "shared.down.weight"] = (hidden, shared)
    return shapes
