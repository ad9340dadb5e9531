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
    layer_kinds,
    layer_types,
    stored_bits,
)
from kvasir_api.cache_groups import FULL
from kvasir_api.hf_config import architectures, count, flattened, layer_count, sequence_limits
from kvasir_api.model_shape import BYTES, ModelShape
from kvasir_api.speculation import NO_DRAFTER, DraftModelSize

GENERATING: Final = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""Endings of architectures with a head over the vocabulary."""

BFLOAT16: Final = (8, 0)
"""Compute capability from which on cards multiply in bfloat16: Ampere and later."""

ACTIVATION_BYTES_PER_TOKEN_FACTOR: Final = 12
"""Peak live activations of one token in units of max(hidden, intermediate) elements of the compute type: residual, norm, fused
gate-up (2x intermediate), its product, and the float32 copies that norms make."""

BATCH_TOKENS: Final = {"cpu": 512, "cuda": 8192}
"""Tokens of the largest step where they are not set."""

PROCESS_BYTES: Final = {"cpu": 350 << 20, "cuda": 640 << 20}
"""What the engine holds besides weights, activations and cache: on a CPU the process itself as measured (torch and its libraries,
346 MiB with a model of 4 MB), on CUDA an allowance for the driver's context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPart:
    """What one of several ranks holds of the weights, and of each token of a cache that they share."""

    weights_bytes: int
    kv_bytes_per_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFit:
    """Verdict with the numbers behind it. concurrency: requests of the longest length that fit at once.

    weights_bytes: on the device; host_weights_bytes: of those that are on the host, where they are copied from in every step.

    kv_dtype: of keys and values, as of `ModelShape.kv_bytes_per_token`. sequence_tokens: of kv_tokens that a request of the longest length takes, fewer than its length where layers see a window
    only. longest_sequence: tokens of the longest request that fits, at most as many as were asked for.
    """

    verdict: Literal["Fits", "TooSmall"]
    weights_bytes: int
    host_weights_bytes: int
    activation_bytes: int
    kv_dtype: str
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
    gate = query if family in layer_types.DELTAS else 0
    rows_of = {"query": query, "gate": gate, "key": key, "head_dim": head_dim}
    dense = dense_layers.of(config, hidden=hidden, intermediate=intermediate, **rows_of)
    sizes = {"hidden": hidden, "intermediate": intermediate, "rows": 2 * query + gate + 2 * key}
    of_layers = layer_kinds.of(config, groups, compressed, experts, dense, **sizes)
    matrices, others, routed = (sum(one) for one in list(zip(*of_layers, strict=True))[:3])
    tied = bool(config.get("tie_word_embeddings", family in ("gemma2", "gemma3_text")))
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
        parameters=(parameters := matrices + others + dense.last_norm + embeddings),
        active_parameters=parameters - routed * (experts.number - experts.chosen) // max(experts.number, 1),
        kinds=(folded := layer_kinds.folded(of_layers))[0],
        pattern=folded[1],
        head=vocabulary * hidden if generates else 0,
        tied=tied,
        dtype=_dtype(config),
        experts=experts.number,
        chosen_experts=experts.chosen,
        expert_size=experts.size,
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
    part: RankPart | None = None,
) -> MemoryFit:
    """Whether weights, activations of one step and the KV cache of at least one longest request fit the share of memory.

    memory_bytes: the whole device or container; memory_fraction: 0..1 of it that may be used; lengths in tokens (0 takes
    the model's own longest; without a step's tokens its activations are left out). kv_cache_dtype: auto is dtype. process_bytes: of PROCESS_BYTES, where the memory is not for weights and cache alone, and of copies of states.
    cache_limit_bytes: what the cache may take in any case, None for all that is left. weights_host_bytes: as of the option.
    drafter: what a draft model takes beside. max_sequences: that run at once; all that bounds a model without a cache. part: where the
    memory is that of one of several ranks.
    """
    cached = dtype if kv_cache_dtype == "auto" else kv_cache_dtype
    longest = max_model_len or model.max_positions
    on_host, saved = model.host_weights_bytes(dtype, quantization, weights_host_bytes)
    weights = part.weights_bytes if part else model.weights_bytes(dtype, quantization) - saved
    per_token = (part.kv_bytes_per_token if part else model.kv_bytes_per_token(cached)) + drafter.kv_bytes_per_token
    step_tokens = model.step_tokens(max_batch_tokens, longest)
    token_bytes = ACTIVATION_BYTES_PER_TOKEN_FACTOR * max(model.hidden, model.intermediate) * BYTES[dtype]
    activations = step_tokens * token_bytes if max_batch_tokens else 0
    usable = int(memory_bytes * memory_fraction)
    left = usable - weights - drafter.weights_bytes - activations - process_bytes
    if cache_limit_bytes is not None:
        left = min(left, cache_limit_bytes)
    places = cache_groups.places(max_sequences, longest) if left >= 0 else 0
    kv_tokens = max(left // per_token, 0) if per_token else places
    needed = model.sequence_tokens(longest, max_batch_tokens)
    parts = {
        "the process": process_bytes,
        f"the weights beside {readable(on_host)} of them on the host" if on_host else "the weights": weights,
        "the draft model": drafter.weights_bytes,
        "a step": activations,
        f"the KV cache of one request of {longest:,} tokens": needed * per_token,
    }
    return MemoryFit(
        verdict="Fits" if kv_tokens >= needed else "TooSmall",
        weights_bytes=weights,
        host_weights_bytes=on_host,
        activation_bytes=activations,
        kv_dtype=cached,
        kv_bytes_per_token=per_token,
        kv_tokens=kv_tokens,
        sequence_tokens=needed,
        longest_sequence=model.longest_sequence(kv_tokens, max_batch_tokens, longest),
        concurrency=model.requests(kv_tokens, longest, max_batch_tokens),
        message=f"{sum_of(parts)}; {readable(usable)} of {readable(memory_bytes)} may be used",
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
