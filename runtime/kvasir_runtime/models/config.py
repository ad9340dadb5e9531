"""config.json and generation_config.json as typed, bounded values: the only place that knows their keys.

Called by the runner before anything is allocated. Unknown keys are ignored (every release of the hub's library adds
some); known keys that would change the arithmetic and that no family here implements are refused.
"""

import json
import math
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from kvasir_runtime import gguf
from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.spec import RopeSpec
from kvasir_runtime.models import quantization_config

_MAX_FILE_BYTES = 16 * 2**20
_T = TypeVar("_T")

Count = Annotated[int, msgspec.Meta(ge=1, le=2**24)]
Positive = Annotated[float, msgspec.Meta(gt=0)]


class RopeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`rope_scaling`, or `rope_parameters` of newer files, which hold the base as well, for each kind of layer its own
    where they are not the same.
    """

    rope_type: str | None = None
    type: str | None = None
    rope_theta: Positive | None = None
    factor: Positive | None = None
    low_freq_factor: Positive = 1.0
    high_freq_factor: Positive = 4.0
    beta_fast: Positive | None = None
    beta_slow: Positive | None = None
    attention_factor: Positive | None = None
    mscale: Positive | None = None
    mscale_all_dim: Positive | None = None
    truncate: bool = True
    original_max_position_embeddings: Count | None = None
    partial_rotary_factor: Positive = 1.0
    factors: tuple[Positive, ...] | None = None
    full_attention: "RopeConfig | None" = None
    sliding_attention: "RopeConfig | None" = None


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """config.json of a decoder-only language model."""

    architectures: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    vocab_size: Count
    hidden_size: Count
    intermediate_size: Count
    num_hidden_layers: Annotated[int, msgspec.Meta(ge=1, le=1024)]
    num_attention_heads: Annotated[int, msgspec.Meta(ge=1, le=4096)]
    num_key_value_heads: Annotated[int, msgspec.Meta(ge=1, le=4096)] | None = None
    head_dim: Annotated[int, msgspec.Meta(ge=2, le=1024)] | None = None
    max_position_embeddings: Count = 2048
    rms_norm_eps: Positive = 1e-6
    hidden_act: str = "silu"
    tie_word_embeddings: bool | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    rope_theta: Positive | None = None
    rope_scaling: RopeConfig | None = None
    rope_parameters: RopeConfig | None = None
    partial_rotary_factor: Positive | None = None
    sliding_window: Count | None = None
    use_sliding_window: bool | None = None
    max_window_layers: Annotated[int, msgspec.Meta(ge=0)] | None = None
    layer_types: tuple[str, ...] | None = None
    hidden_activation: str | None = None
    query_pre_attn_scalar: Positive | None = None
    attn_logit_softcapping: Positive | msgspec.UnsetType | None = msgspec.UNSET
    final_logit_softcapping: Positive | msgspec.UnsetType | None = msgspec.UNSET
    sliding_window_pattern: Count | None = None
    rope_local_base_freq: Positive | None = None
    use_bidirectional_attention: bool | None = None
    qkv_bias: bool = True
    num_experts: Annotated[int, msgspec.Meta(ge=0, le=4096)] | None = None
    num_local_experts: Annotated[int, msgspec.Meta(ge=0, le=4096)] | None = None
    num_experts_per_tok: Annotated[int, msgspec.Meta(ge=1, le=4096)] | None = None
    moe_intermediate_size: Count | None = None
    shared_expert_intermediate_size: Annotated[int, msgspec.Meta(ge=0, le=2**24)] | None = None
    norm_topk_prob: bool = False
    decoder_sparse_step: Annotated[int, msgspec.Meta(ge=1)] = 1
    mlp_only_layers: tuple[int, ...] | None = None
    quantization_config: dict[str, Any] | None = None
    torch_dtype: str | None = None
    dtype: str | None = None
    eos_token_id: int | tuple[int, ...] | None = None
    is_causal: bool | None = None
    num_labels: Count | None = None
    id2label: dict[str, str] | None = None

    @property
    def labels(self) -> int:
        """Labels of a classification head; files that say nothing mean two."""
        return self.num_labels or len(self.id2label or ()) or 2

    @property
    def width_of_head(self) -> int:
        """head_dim, or what the other sizes imply."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def key_value_heads(self) -> int:
        """num_key_value_heads, or one per query head."""
        return self.num_key_value_heads or self.num_attention_heads


class _Generation(msgspec.Struct, frozen=True, kw_only=True):
    eos_token_id: int | tuple[int, ...] | None = None


def read_config(model: Path) -> ModelConfig:
    """config.json of a model directory, or the metadata of a GGUF file. Raises ModelError naming file and key."""
    path = model if gguf.is_gguf(model) else model / "config.json"
    config = _converted(path) if gguf.is_gguf(model) else _decode(path, ModelConfig)
    if config.quantization_config is not None and (why := quantization_config.refusal(config.quantization_config)):
        raise ModelError(
            f"{path}: {why} (quantization_config), which is not supported;"
            " take the full weights with --quantization fp8, int8 or int4, or a GGUF file"
        )
    if config.is_causal is False or config.use_bidirectional_attention:
        raise ModelError(
            f"{path}: attention in both directions is not supported (is_causal, use_bidirectional_attention)"
        )
    if config.num_attention_heads % config.key_value_heads:
        raise ModelError(
            f"{path}: num_key_value_heads {config.key_value_heads} does not divide"
            f" num_attention_heads {config.num_attention_heads}"
        )
    if config.head_dim is None and config.hidden_size % config.num_attention_heads:
        raise ModelError(
            f"{path}: num_attention_heads {config.num_attention_heads} does not divide hidden_size {config.hidden_size}"
        )
    if config.width_of_head % 2:
        raise ModelError(f"{path}: head_dim {config.width_of_head} is odd; rotary embedding needs pairs")
    return config


def read_document(model: Path) -> dict[str, Any]:
    """The same as `read_config` reads, as it is written. Raises ValueError, or ModelError for a GGUF file."""
    if gguf.is_gguf(model):
        return gguf.config(gguf.read(model))
    document = json.loads((model / "config.json").read_text())
    if not isinstance(document, dict):
        raise ValueError("config.json is not a JSON object")
    return document


def read_eos_token_ids(model: Path, config: ModelConfig) -> tuple[int, ...]:
    """Ids that end an answer: those of generation_config.json and of config.json, each once, in that order."""
    path = model / "generation_config.json"
    generation = _decode(path, _Generation) if path.exists() else _Generation()
    ids: dict[int, None] = {}
    for given in (generation.eos_token_id, config.eos_token_id):
        ids |= dict.fromkeys((given,) if isinstance(given, int) else given or ())
    return tuple(token for token in ids if 0 <= token < config.vocab_size)


def rope_spec(config: ModelConfig) -> RopeSpec:
    """The rotary embedding that a config requests. Raises ModelError for a kind that is not implemented."""
    scaling = config.rope_parameters or config.rope_scaling or RopeConfig()
    if scaling.full_attention or scaling.sliding_attention:
        raise ModelError("config.json: rope_parameters for each kind of layer are not supported in this architecture")
    return rope_of(config, scaling, config.rope_theta or 10_000.0)


def rope_of(config: ModelConfig, scaling: RopeConfig, theta: float) -> RopeSpec:
    """The rotary embedding of one kind of layer. theta: where scaling names none. Raises ModelError as `rope_spec`."""
    kind = scaling.rope_type or scaling.type or "default"
    theta = scaling.rope_theta or theta
    if (config.partial_rotary_factor or scaling.partial_rotary_factor) != 1.0:
        raise ModelError("config.json: partial_rotary_factor other than 1 is not supported")
    if kind == "default":
        return RopeSpec(theta=theta)
    if kind == "factors":
        return RopeSpec(kind="factors", theta=theta, factors=_factors(config, scaling))
    if kind not in ("linear", "llama3", "yarn"):
        raise ModelError(f"config.json: rope type {kind} is not supported; expected default, linear, llama3 or yarn")
    if scaling.factor is None:
        raise ModelError(f"config.json: rope type {kind} needs a factor")
    return RopeSpec(
        kind=kind,  # type: ignore[arg-type]  # narrowed by the tuple above
        theta=theta,
        factor=scaling.factor,
        low_freq_factor=scaling.low_freq_factor,
        high_freq_factor=scaling.high_freq_factor,
        beta_fast=scaling.beta_fast or 32.0,
        beta_slow=scaling.beta_slow or 1.0,
        attention_factor=_attention_factor(scaling),
        truncate=scaling.truncate,
        original_max_position=scaling.original_max_position_embeddings or config.max_position_embeddings,
    )


def _factors(config: ModelConfig, scaling: RopeConfig) -> tuple[float, ...]:
    factors = scaling.factors or ()
    if len(factors) != config.width_of_head // 2:
        raise ModelError(
            f"{len(factors)} rotary factors for heads of {config.width_of_head}, expected one for each pair"
        )
    return factors


def _attention_factor(scaling: RopeConfig) -> float:
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale is None or scaling.mscale_all_dim is None or scaling.factor is None or scaling.factor <= 1:
        return 0.0
    grown = 0.1 * math.log(scaling.factor)
    return (grown * scaling.mscale + 1) / (grown * scaling.mscale_all_dim + 1)


def _converted(path: Path) -> ModelConfig:
    try:
        return msgspec.convert(gguf.config(gguf.read(path)), ModelConfig)
    except msgspec.ValidationError as error:
        raise ModelError(f"{path}: {error}") from error


def _decode(path: Path, kind: type[_T]) -> _T:
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise ModelError(f"{path} has more than {_MAX_FILE_BYTES} bytes")
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError as error:
        raise ModelError(f"{path} does not exist; expected the directory of a Hugging Face checkpoint") from error
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: {error}") from error
