"""Does a model fit? Weights and KV cache predicted from its config alone, before any memory is taken.

Pure arithmetic on the fields of a Hugging Face config.json, for decoders with or without experts, and encoders. The runtime refuses with these numbers
before it loads, and `kvasir plan` uses the same functions, so that there is one forecast.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from kvasir_api import (
    cache_groups,
    compressed_attention,
    dense_layers,
    encoder_layers,
    expert_layers,
    layer_types,
    stored_bits,
    weight_offload,
)
from kvasir_api.cache_groups import FULL, LayerAttention
from kvasir_api.hf_config import architectures, count, flattened, layer_count, sequence_limits
from kvasir_api.speculation import NO_DRAFTER, DraftModelSize
from kvasir_api.stored_bits import IN_FULL, HeldBits

GENERATING: Final = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""Endings of architectures with a head over the vocabulary."""

BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
KV_SCALE_BYTES: Final = 4
"""Of the float32 beside each int8 or int4 row of one token and head."""

BFLOAT16: Final = (8, 0)
"""Compute capability from which on cards multiply in bfloat16: Ampere and later."""

FP8_SIXTEENTHS: Final = 16
INT4_SIXTEENTHS: Final = 10
"""Of a byte that a weight of a layer takes: 4 bits, and in each group of 32 a float16 scale and minimum. The head has 8 bits as of
int8 in all. Of fp8 the float32 scale of a row is left out: a thousandth, and so are those of rows on processors."""

ACTIVATION_BYTES_PER_TOKEN_FACTOR: Final = 12
"""Peak live activations of one token in units of max(hidden, intermediate) elements of the compute type: residual, norm, fused
gate-up (2x intermediate), its product, and the float32 copies that norms make."""

BATCH_TOKENS: Final = {"cpu": 512, "cuda": 8192}
"""Tokens of the largest step where they are not set."""

PROCESS_BYTES: Final = {"cpu": 350 << 20, "cuda": 640 << 20}
"""What the engine holds besides weights, activations and cache: on a CPU the process itself as measured (torch and its libraries,
346 MiB with a model of 4 MB), on CUDA an allowance for the driver's context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a decoder. parameters counts every weight once (tied embeddings once); active are those that a token is computed with.

    intermediate: the widest that a token's feed-forward layers are, those of its experts side by side. experts, chosen_experts: in a
    layer, and those of them that a token goes to; 0 without, or where that was not told. routed: numbers of all these experts.
    attentions: one for each cache group; group_layers: how many layers each has. state_bytes: of the state of a layer that has one in
    place of keys and values. latent_row: numbers of a token in one layer, where keys and values are compressed.
    matrices: those of the layers' matrices. head: those of a head over the vocabulary, be it the table of embeddings (tied) or not.
    held: in how many bits their numbers are, on cards; cpu_held: on processors, which `inspection.held_on` chooses.
    stored_plain: numbers of matrices that a checkpoint in fewer bits leaves in full, which only a reader of names knows.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    max_positions: int
    parameters: int
    active_parameters: int
    matrices: int
    head: int
    tied: bool
    dtype: str
    attentions: tuple[LayerAttention, ...]
    group_layers: tuple[int, ...]
    experts: int = 0
    chosen_experts: int = 0
    routed: int = 0
    state_bytes: int = 0
    latent_row: int = 0
    stored_plain: int = 0
    held: HeldBits = IN_FULL
    cpu_held: HeldBits = IN_FULL

    def weights_bytes(self, dtype: str, quantization: str = "auto") -> int:
        """Bytes of all weights in dtype (float32, bfloat16, float16), matrices and head as quantized (auto, none, fp8, int8, int4).

        With auto a checkpoint stays in its own bits, as do numbers of it that are in as many as the quantization has.
        """
        _, head = self._sixteenths(dtype, quantization)
        plain = self.parameters - self.matrices - (0 if self.tied else self.head)
        return plain * BYTES[dtype] + self._matrices_bytes(dtype, quantization) + int(self.head * head // 16)

    def _sixteenths(self, dtype: str, quantization: str) -> tuple[float, float]:
        """Of a byte for a number of the matrices and of the head, 0 of a head that is the table in dtype."""
        full = 16 * BYTES[dtype]
        head = 0 if self.tied else full
        if quantization == "auto":
            return self.held.stored or full, head
        layers = {"fp8": FP8_SIXTEENTHS, "int8": self.held.int8, "int4": INT4_SIXTEENTHS}
        return (layers[quantization], self.held.int8) if quantization in layers else (full, head)

    def _matrices_bytes(self, dtype: str, quantization: str) -> int:
        """Of those of the layers, as held."""
        layers, _ = self._sixteenths(dtype, quantization)
        stored = dict(self.held.kept).get(quantization, layers)
        full = 16 * BYTES[dtype] if quantization == "auto" else layers
        return int((self.stored_plain * full + (self.matrices - self.stored_plain) * stored) // 16)

    def host_weights_bytes(self, dtype: str, quantization: str, limit_bytes: int) -> tuple[int, int]:
        """Bytes of the layers that stay on the host, and by how much fewer they leave on the device, where buffers for them are.

        limit_bytes: weightsHostBytes; dtype and quantization as above. Layers count as equals.
        """
        each = self._matrices_bytes(dtype, quantization) // self.layers
        count = len(weight_offload.chosen([each] * self.layers, limit_bytes)) if limit_bytes else 0
        return count * each, max(0, count - weight_offload.BUFFERS) * each

    def kv_bytes_per_token(self, dtype: str) -> int:
        """Bytes of keys and values of one token in every layer, and what blocks leave empty. dtype: as above, or int8, int4 or fp8."""
        token_bytes = self.layer_bytes_per_token(dtype)
        return cache_groups.bytes_per_token(
            self.attentions,
            self.group_layers,
            token_bytes=token_bytes,
            state_bytes=self.state_bytes,
            block_size=cache_groups.least_block_size(token_bytes=token_bytes, state_bytes=self.state_bytes),
        )

    def block_bytes(self, dtype: str, block_size: int) -> int:
        """Of a block of one cache group, of block_size tokens or as many as a state takes. dtype: as above."""
        token_bytes = self.layer_bytes_per_token(dtype)
        least = cache_groups.least_block_size(token_bytes=token_bytes, state_bytes=self.state_bytes)
        return max(block_size, least) * self.kv_bytes_per_token(dtype) // len(self.attentions)

    def layer_bytes_per_token(self, dtype: str) -> int:
        """Bytes of keys and values of one token in one layer; 0 of a model that keeps none. dtype: as above."""
        if self.keeps_nothing:
            return 0
        width = self.latent_row or self.head_dim
        rows = {"fp8": width, "int8": width + KV_SCALE_BYTES, "int4": width // 2 + KV_SCALE_BYTES}
        row = rows[dtype] if dtype in rows else width * BYTES[dtype]
        return row if self.latent_row else 2 * self.kv_heads * row

    @property
    def keeps_nothing(self) -> bool:
        """Whether it has no KV cache: an encoder."""
        return cache_groups.keeps_nothing(self.attentions)

    def step_tokens(self, max_batch_tokens: int, longest: int) -> int:
        """Tokens of the largest step, which computes the longest sequence whole where nothing is kept."""
        return max(max_batch_tokens, longest) if self.keeps_nothing else max_batch_tokens

    @property
    def block_tokens(self) -> int:
        """Tokens of the least block, as which a state counts; 1 without states, where other blocks change hardly anything."""
        token_bytes = self.layer_bytes_per_token(self.dtype)
        return cache_groups.least_block_size(token_bytes=token_bytes, state_bytes=self.state_bytes)

    def sequence_tokens(self, num_tokens: int, chunk_tokens: int) -> int:
        """Tokens of capacity that a sequence takes at once at most: fewer than its own where layers see a window only.

        chunk_tokens: computed in one step at most.
        """
        size = self.block_tokens
        blocks = cache_groups.blocks_of_sequence(
            self.attentions, num_tokens, block_size=size, chunk_tokens=chunk_tokens
        )
        return -(-blocks * size // len(self.attentions))

    def longest_sequence(self, capacity_tokens: int, chunk_tokens: int, limit: int) -> int:
        """Tokens of the longest sequence, at most limit, that a cache of so many tokens holds alone."""
        size = self.block_tokens
        blocks = capacity_tokens * len(self.attentions) // size
        return cache_groups.longest_sequence(
            self.attentions, blocks, block_size=size, chunk_tokens=chunk_tokens, limit=limit
        )

    def requests(self, capacity_tokens: int, num_tokens: int, chunk_tokens: int) -> float:
        """Sequences of so many tokens that a cache holds at once, of which one at a time computes a chunk of its prompt."""
        most, held = self.sequence_tokens(num_tokens, chunk_tokens), self.sequence_tokens(num_tokens, 1)
        return capacity_tokens / most if capacity_tokens < most else (capacity_tokens - most + held) / held


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFit:
    """Verdict with the numbers behind it. concurrency: requests of the longest length that fit at once.

    weights_bytes: on the device; host_weights_bytes: of those that are on the host, where they are copied from in every step.

    sequence_tokens: of kv_tokens that a request of the longest length takes, fewer than its length where layers see a window
    only. longest_sequence: tokens of the longest request that fits, at most as many as were asked for.
    """

    verdict: Literal["Fits", "TooSmall"]
    weights_bytes: int
    host_weights_bytes: int
    activation_bytes: int
    kv_bytes_per_token: int
    kv_tokens: int
    sequence_tokens: int
    longest_sequence: int
    concurrency: float
    message: str


def cuda_dtype(checkpoint: str, capability: tuple[int, int] = BFLOAT16) -> str:
    """What --dtype auto comes to on a card: the checkpoint's type, and 16 bits where that is float32.

    Cards multiply in float32 at a fraction of their rate, and weights and cache would take twice the memory. Both 16-bit types take
    the same, so a forecast need not know the capability.
    """
    if checkpoint != "float32":
        return checkpoint
    return "bfloat16" if capability >= BFLOAT16 else "float16"


def shared_cache_bytes(available_bytes: int) -> int:
    """The KV cache where its size is not set and no container limits the process: others live on that machine too.

    A quarter of the memory that is available, at most 8 GiB.
    """
    return min(available_bytes // 4, 8 << 30)


def shape(config: Mapping[str, Any]) -> ModelShape:
    """Sizes from a config.json, flattened or not. Raises ValueError that names a missing or senseless field."""
    config = flattened(config)
    hidden, heads = count(config, "hidden_size"), count(config, "num_attention_heads")
    layers, vocabulary = layer_count(config), count(config, "vocab_size")
    intermediate = count(config, "intermediate_size")
    experts, groups = expert_layers.of(config, layers), _cache_groups(config, layers)
    kv_heads = count(config, "num_key_value_heads", heads)
    head_dim = count(config, "head_dim", max(hidden // heads, 1))
    query, key = heads * head_dim, kv_heads * head_dim
    compressed, family = compressed_attention.weights(config, groups), str(config.get("model_type", ""))
    attending = layers - compressed.layers
    gate = query if family in layer_types.DELTAS else 0
    rows_of = {"query": query, "gate": gate, "key": key, "head_dim": head_dim}
    dense = dense_layers.of(config, hidden=hidden, intermediate=intermediate, **rows_of)
    bare = min(dense.bare, layers - experts.layers)
    others = (
        (2 * layers - bare - min(dense.joined, layers)) * dense.norms // 2
        + attending * (dense.head_norms + dense.attention_biases)
        + compressed.others
    )
    others += (layers - experts.layers - bare) * dense.mlp_biases + dense.last_norm + experts.biases
    tied = bool(config.get("tie_word_embeddings", family in ("gemma2", "gemma3_text")))
    matrices = attending * hidden * (2 * query + gate + 2 * key) + compressed.matrices
    matrices += dense.products * hidden * intermediate * (layers - experts.layers - bare)
    each, latent = experts.layers * experts.products, experts.latent
    routed = each * (latent or hidden) * experts.number * experts.size
    matrices += routed + each * hidden * experts.shared + 2 * hidden * latent * experts.layers
    routers = experts.layers * hidden * (experts.number + (1 if experts.shared and family.startswith("qwen") else 0))
    rows = (hidden, query, intermediate, experts.size, experts.shared)
    stored = (config.get("quantization_config"), routed / matrices, rows)
    named = () if config.get("use_bidirectional_attention") is True else architectures(config) or GENERATING
    generates = any(name.endswith(GENERATING) for name in named)
    embeddings = vocabulary * (hidden * (1 if tied or not generates else 2) + int(generates and dense.head_bias))
    embeddings += encoder_layers.tables(config, hidden=hidden, heads=heads)
    return ModelShape(
        layers=layers,
        hidden=hidden,
        intermediate=max(intermediate, experts.chosen * experts.size + experts.shared),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary=vocabulary,
        max_positions=sequence_limits(config).usual,
        parameters=(parameters := matrices + routers + others + embeddings),
        active_parameters=parameters - routed * (experts.number - experts.chosen) // max(experts.number, 1),
        matrices=matrices,
        head=vocabulary * hidden if generates else 0,
        tied=tied,
        dtype=_dtype(config),
        experts=experts.number,
        chosen_experts=experts.chosen,
        routed=routed,
        attentions=tuple(group.attention for group in groups),
        group_layers=tuple(len(group.layers) for group in groups),
        state_bytes=compressed.state_bytes,
        latent_row=compressed.latent_row,
        held=stored_bits.held(*stored, "cuda"),
        cpu_held=stored_bits.held(*stored, "cpu"),
    )


def _cache_groups(config: Mapping[str, Any], layers: int) -> tuple[cache_groups.CacheGroup, ...]:
    """As `models` of the runtime has them; a config that it would refuse for its layers counts as full attention."""
    try:
        given = {field: config.get(field) for field in layer_types.FIELDS}
        attentions = layer_types.attentions(str(config.get("model_type", "")), layers, **given)
    except (ValueError, TypeError):
        attentions = (FULL,) * layers
    return cache_groups.group_layers(attentions)


def _dtype(config: Mapping[str, Any]) -> str:
    named = str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")
    return named if named in BYTES else "float32"


def int4_cache_refusal(*, latent: bool, head_dim: int, device: str) -> str:
    """Why a KV cache of a model cannot have 4 bits; empty where it can.

    latent: whether a token has one compressed row for all heads. device: cpu or cuda, whose kernels read whole words.
    """
    if latent:
        return "kv_cache_dtype int4 is for keys and values of heads, and this model caches compressed rows; take int8"
    unit = 2 if device == "cpu" else 8
    if head_dim % unit:
        return f"kv_cache_dtype int4 needs heads of a multiple of {unit} on {device}, head_dim is {head_dim}; take int8"
    return ""


def fit(
    model: ModelShape,
    *,
    memory_bytes: int,
    memory_fraction: float,
    dtype: str,
    max_model_len: int,
    max_batch_tokens: int,
    process_bytes: int = 0,
    kv_cache_dtype: str = "auto",
    quantization: str = "auto",
    cache_limit_bytes: int | None = None,
    weights_host_bytes: int = 0,
    drafter: DraftModelSize = NO_DRAFTER,
    max_sequences: int = 1,
) -> MemoryFit:
    """Whether weights, activations of one step and the KV cache of at least one longest request fit the share of memory.

    memory_bytes: the whole device or container; memory_fraction: 0..1 of it that may be used; lengths in tokens (0 takes
    the model's own longest; without a step's tokens its activations are left out). kv_cache_dtype: auto is dtype. process_bytes: of PROCESS_BYTES, where the memory is not for weights and cache alone, and of copies of states.
    cache_limit_bytes: what the cache may take in any case, None for all that is left. weights_host_bytes: as of the option.
    drafter: what a draft model takes beside. max_sequences: that run at once; all that bounds a model without a cache.
    """
    cached = dtype if kv_cache_dtype == "auto" else kv_cache_dtype
    longest = max_model_len or model.max_positions
    on_host, saved = model.host_weights_bytes(dtype, quantization, weights_host_bytes)
    weights = model.weights_bytes(dtype, quantization) - saved
    per_token = model.kv_bytes_per_token(cached) + drafter.kv_bytes_per_token
    step_tokens = model.step_tokens(max_batch_tokens, longest)
    token_bytes = ACTIVATION_BYTES_PER_TOKEN_FACTOR * max(model.hidden, model.intermediate) * BYTES[dtype]
    activations = step_tokens * token_bytes if max_batch_tokens else 0
    left = int(memory_bytes * memory_fraction) - weights - drafter.weights_bytes - activations - process_bytes
    if cache_limit_bytes is not None:
        left = min(left, cache_limit_bytes)
    if per_token:
        kv_tokens = max(left // per_token, 0)
    else:
        kv_tokens = cache_groups.places(max_sequences, longest) if left >= 0 else 0
    needed = model.sequence_tokens(longest, max_batch_tokens)
    enough = kv_tokens >= needed
    parts = {
        "the process": process_bytes,
        f"the weights beside {readable(on_host)} of them on the host" if on_host else "the weights": weights,
        "the draft model": drafter.weights_bytes,
        "a step": activations,
        f"the KV cache of one request of {longest:,} tokens": needed * per_token,
    }
    room = f"{readable(int(memory_bytes * memory_fraction))} of {readable(memory_bytes)} may be used"
    return MemoryFit(
        verdict="Fits" if enough else "TooSmall",
        weights_bytes=weights,
        host_weights_bytes=on_host,
        activation_bytes=activations,
        kv_bytes_per_token=per_token,
        kv_tokens=kv_tokens,
        sequence_tokens=needed,
        longest_sequence=model.longest_sequence(kv_tokens, max_batch_tokens, longest),
        concurrency=model.requests(kv_tokens, longest, max_batch_tokens),
        message=f"{sum_of(parts)}; {room}",
    )


def sum_of(parts: Mapping[str, int]) -> str:
    """What takes memory, in bytes, as a sentence without its end: "the weights (15.00 GiB) and a step (20 MiB) take 15.02 GiB".

    What takes none is left out.
    """
    *most, last = [f"{name} ({readable(size)})" for name, size in parts.items() if size]
    return f"{', '.join(most)} and {last} take {readable(sum(parts.values()))}" if most else last


def readable(size: int) -> str:
    """Bytes in GiB with two decimals, below a tenth of one in MiB or KiB."""
    if size >= 2**30 / 10:
        return f"{size / 2**30:.2f} GiB"
    return f"{size / 2**20:.0f} MiB" if size >= 2**20 else f"{size / 2**10:.0f} KiB"
