"""config.json and generation_config.json as typed, bounded values: the only place that knows their keys.

Called by the runner before anything is allocated. Unknown keys are ignored (every release of the hub's library adds
some); known keys that would change the arithmetic and that no family here implements are refused.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from kvasir_api import chatglm, hf_config
from kvasir_runtime import gguf
from kvasir_runtime.errors import ModelError
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
    partial_rotary_factor: Positive | None = None
    alpha: Annotated[float, msgspec.Meta(gt=0, le=1e9)] | None = None
    mixed_b: float | None = None
    short_mscale: Positive | None = None
    long_mscale: Positive | None = None
    llama_4_scaling_beta: Annotated[float, msgspec.Meta(ge=0)] | None = None
    factors: tuple[Positive, ...] | None = None
    short_factor: tuple[Positive, ...] | None = None
    long_factor: tuple[Positive, ...] | None = None
    full_attention: "RopeConfig | None" = None
    sliding_attention: "RopeConfig | None" = None


class EagleConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a head of EAGLE-3 reads: hidden states behind these layers of the model that it drafts for."""

    eagle_aux_hidden_state_layer_ids: tuple[Annotated[int, msgspec.Meta(ge=0, le=1024)], ...] | None = None


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """config.json of a language model: a decoder, or an encoder of text."""

    architectures: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    vocab_size: Count
    hidden_size: Count
    intermediate_size: Count
    num_hidden_layers: Annotated[int, msgspec.Meta(ge=1, le=1024)]
    num_attention_heads: Annotated[int, msgspec.Meta(ge=1, le=4096)]
    num_key_value_heads: Annotated[int, msgspec.Meta(ge=1, le=4096)] | None = None
    head_dim: Annotated[int, msgspec.Meta(ge=2, le=1024)] | None = None
    max_position_embeddings: Count = 2048
    original_max_position_embeddings: Count | None = None
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
    full_attention_interval: Count | None = None
    kv_lora_rank: Annotated[int, msgspec.Meta(ge=1, le=8192)] | None = None
    q_lora_rank: Annotated[int, msgspec.Meta(ge=1, le=8192)] | None = None
    qk_nope_head_dim: Annotated[int, msgspec.Meta(ge=1, le=1024)] | None = None
    qk_rope_head_dim: Annotated[int, msgspec.Meta(ge=2, le=1024)] = 64
    v_head_dim: Annotated[int, msgspec.Meta(ge=1, le=1024)] | None = None
    n_routed_experts: Annotated[int, msgspec.Meta(ge=0, le=4096)] | None = None
    n_shared_experts: Annotated[int, msgspec.Meta(ge=0, le=64)] | None = None
    first_k_dense_replace: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0
    routed_scaling_factor: Positive = 1.0
    n_group: Annotated[int, msgspec.Meta(ge=1, le=4096)] | None = None
    topk_group: Annotated[int, msgspec.Meta(ge=1, le=4096)] | None = None
    alibi_bias_max: Positive | None = None
    no_bias: bool | None = None
    qk_ln: bool | None = None
    prefix_lm: bool | None = None
    attn_type: str | None = None
    apply_residual_connection_post_layernorm: bool | None = None
    multi_query_attention: bool | None = None
    rmsnorm: bool | None = None
    post_layer_norm: bool | None = None
    add_bias_linear: bool | None = None
    normalised_head: bool = False
    rope_interleave: bool | None = None
    rope_ratio: Annotated[float, msgspec.Meta(gt=0, le=chatglm.MOST_RATIO)] | None = None
    swiglu_limit: Positive | None = None
    swiglu_alpha: Positive | None = None
    topk_method: str | None = None
    scoring_func: str | None = None
    moe_layer_freq: int = 1
    linear_conv_kernel_dim: Annotated[int, msgspec.Meta(ge=2, le=64)] = 4
    linear_key_head_dim: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 128
    linear_value_head_dim: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 128
    linear_num_key_heads: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 16
    linear_num_value_heads: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 32
    mamba_expand: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False
    time_step_limit: Any = None
    bare_layers: tuple[Annotated[int, msgspec.Meta(ge=0, le=1024)], ...] | None = None
    joined_layers: tuple[Annotated[int, msgspec.Meta(ge=0, le=1024)], ...] | None = None
    mamba_d_ssm: Count | None = None
    mamba_rms_norm: bool = True
    mamba_norm_before_gate: bool = True
    projectors_bias: bool = False
    lm_head_multiplier: Positive = 1.0
    key_multiplier: Positive = 1.0
    attention_in_multiplier: Positive = 1.0
    attention_out_multiplier: Positive = 1.0
    ssm_in_multiplier: Positive = 1.0
    ssm_out_multiplier: Positive = 1.0
    ssm_multipliers: tuple[Positive, Positive, Positive, Positive, Positive] | None = None
    mlp_multipliers: tuple[Positive, Positive] | None = None
    use_bidirectional_attention: bool | None = None
    is_causal: bool | None = None
    qkv_bias: bool | None = None
    bias: bool | None = None
    use_bias: bool | None = None
    attention_out_bias: bool | None = None
    clip_qkv: Positive | None = None
    embedding_multiplier: Positive | None = None
    residual_multiplier: Positive | None = None
    attention_multiplier: Positive | None = None
    logits_scaling: Positive | None = None
    logit_scale: Positive | None = None
    use_qk_norm: bool | None = None
    no_rope_layers: tuple[int, ...] | None = None
    attn_temperature_tuning: bool | int | None = None
    attn_scale: Positive = 0.1
    floor_scale: Positive = 8192
    new_decoder_architecture: bool | None = None
    parallel_attn: bool | None = None
    num_ln_in_parallel_attn: Annotated[int, msgspec.Meta(ge=1, le=2)] | None = None
    alibi: bool | None = None
    type_vocab_size: Annotated[int, msgspec.Meta(ge=0, le=2**16)] = 0
    relative_attention_num_buckets: Annotated[int, msgspec.Meta(ge=8, le=4096, multiple_of=4)] = 32
    position_embedding_type: str | None = None
    pad_token_id: int | None = None
    norm_bias: bool = False
    global_rope_theta: Positive | None = None
    local_rope_theta: Positive | None = None
    classifier_bias: bool = False
    classifier_activation: str = "gelu"
    prenorm: bool = False
    qkv_proj_bias: bool = False
    mlp_fc1_bias: bool = False
    mlp_fc2_bias: bool = False
    rotary_emb_fraction: float = 1.0
    rotary_emb_interleaved: bool = False
    moe_every_n_layers: int = 0
    feed_forward_type: str | None = None
    layer_norm_type: str = "layer_norm"
    logn_attention_scale: bool = False
    num_experts: Annotated[int, msgspec.Meta(ge=0, le=4096)] | None = None
    num_local_experts: Annotated[int, msgspec.Meta(ge=0, le=4096)] | None = None
    num_experts_per_tok: Annotated[int, msgspec.Meta(ge=1, le=4096)] | None = None
    moe_intermediate_size: Count | None = None
    moe_latent_size: Count | None = None
    shared_expert_intermediate_size: Annotated[int, msgspec.Meta(ge=0, le=2**24)] | None = None
    norm_topk_prob: bool = False
    router_jitter_noise: Positive = 0.01
    lm_head_bias: bool = False
    decoder_sparse_step: Annotated[int, msgspec.Meta(ge=1)] = 1
    mlp_only_layers: tuple[int, ...] | None = None
    quantization_config: dict[str, Any] | None = None
    torch_dtype: str | None = None
    dtype: str | None = None
    eos_token_id: int | tuple[int, ...] | None = None
    num_nextn_predict_layers: int | None = None
    draft_vocab_size: Count | None = None
    eagle_config: EagleConfig | None = None
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


def read_config(model: Path, overrides: str = "") -> ModelConfig:
    """config.json of a model directory, or the metadata of a GGUF file. Raises ModelError naming file and key.

    overrides: the option hf_overrides, fields that replace those of the file.
    """
    path = model if gguf.is_gguf(model) else model / "config.json"
    return checked(path, read_document(model, overrides))


def checked(path: Path, document: Mapping[str, Any]) -> ModelConfig:
    """The config that an untyped one is, flattened before. Raises ModelError naming the key, and path as the file."""
    config = _converted(path, document)
    if config.quantization_config is not None and (why := quantization_config.refusal(config.quantization_config)):
        raise ModelError(
            f"{path}: {why} (quantization_config), which is not supported;"
            " take the full weights with --quantization fp8, int8 or int4, or a GGUF file"
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


class _SentenceConfig(msgspec.Struct):
    max_seq_length: Count | None = None


def read_longest_text(model: Path, limit: int) -> int:
    """Tokens of the longest text that sentence-transformers gives an encoder, at most limit. Raises ModelError."""
    path = model / "sentence_bert_config.json"
    given = decode_file(path, _SentenceConfig).max_seq_length if path.is_file() else None
    return min(given or limit, limit)


def read_document(model: Path, overrides: str = "") -> dict[str, Any]:
    """The same as `read_config` reads, untyped: flattened, and with overrides. Raises ModelError naming the file."""
    if gguf.is_gguf(model):
        document = gguf.config(gguf.read(model))
    else:
        document = read_written(model)
    try:
        return hf_config.overridden(document, hf_config.parsed_overrides(overrides))
    except ValueError as error:
        raise ModelError(f"--hf-overrides: {error}") from error


def read_written(folder: Path) -> dict[str, Any]:
    """config.json as it is written, with the quantization of the file beside it. Raises ModelError naming the file."""
    beside = folder / hf_config.QUANTIZATION_FILE
    quantization = decode_file(beside, dict[str, Any]) if beside.is_file() else {}
    return hf_config.with_quantization(decode_file(folder / "config.json", dict[str, Any]), quantization)


def _converted(path: Path, document: Mapping[str, Any]) -> ModelConfig:
    try:
        return msgspec.convert(document, ModelConfig)
    except msgspec.ValidationError as error:
        raise ModelError(f"{path}: {error}") from error


def decode_file(path: Path, kind: type[_T], *, limit_bytes: int = _MAX_FILE_BYTES) -> _T:
    """A JSON file of a checkpoint as a typed value. Raises ModelError naming the file and what is wrong in it."""
    try:
        if path.stat().st_size > limit_bytes:
            raise ModelError(f"{path} has more than {limit_bytes} bytes")
        return _decoded(path.read_bytes(), kind)
    except FileNotFoundError as error:
        raise ModelError(f"{path} does not exist; expected the directory of a Hugging Face checkpoint") from error
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(f"{path}: {error}") from error


def _decoded(raw: bytes, kind: type[_T]) -> _T:
    """A document, also one with Infinity or NaN, which JSON has not and Python writes: they are read as these words.

    Raises msgspec.DecodeError, UnicodeDecodeError.
    """
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        try:
            plain = msgspec.json.encode(json.loads(raw, parse_constant=str))
        except (ValueError, OverflowError, RecursionError):
            raise error from None
        return msgspec.json.decode(plain, type=kind)
