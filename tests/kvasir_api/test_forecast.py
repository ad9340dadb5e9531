"""The forecast counts weights exactly for the families we serve and refuses with numbers."""

import pytest

from kvasir_api import forecast

LLAMA_8B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN2_HALF_B = {
    "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864,
    "num_hidden_layers": 24, "num_attention_heads": 14,
    "num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 32768,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN3_HALF_B = {
    "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072,
    "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960,
    "tie_word_embeddings": True, "dtype": "bfloat16",
}  # fmt: skip
MIXTRAL_8X7B = {
    "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 32768,
    "num_local_experts": 8, "num_experts_per_tok": 2, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN2_MOE_14B = {
    "model_type": "qwen2_moe", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
    "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 151936, "max_position_embeddings": 8192,
    "num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
    "decoder_sparse_step": 1, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN3_MOE_30B = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
    "max_position_embeddings": 40960, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN3_NEXT_80B = {
    "model_type": "qwen3_next", "hidden_size": 2048, "intermediate_size": 5120, "num_hidden_layers": 48,
    "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 151936,
    "max_position_embeddings": 262144, "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "full_attention_interval": 4,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
GEMMA2_2B = {
    "model_type": "gemma2", "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 256000,
    "max_position_embeddings": 8192, "torch_dtype": "float32",
}  # fmt: skip
GEMMA3_1B = {
    "model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26,
    "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262144,
    "max_position_embeddings": 32768, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "parameters", "active"),
    [
        (MIXTRAL_8X7B, 46_702_792_704, 12_879_925_248),
        (QWEN2_MOE_14B, 14_315_784_192, 2_689_173_504),
        (QWEN3_MOE_30B, 30_532_122_624, 3_353_032_704),
        (QWEN3_NEXT_80B, 79_674_391_296, 3_874_929_408),
        (LLAMA_8B, 8_030_261_248, 8_030_261_248),
        (GEMMA2_2B, 2_614_341_888, 2_614_341_888),
        (GEMMA3_1B, 999_885_952, 999_885_952),
    ],
)
def test_all_and_active_parameters_of_experts(config: dict[str, object], parameters: int, active: int) -> None:
    shape = forecast.shape(config)
    assert (shape.parameters, shape.active_parameters) == (parameters, active)


@pytest.mark.parametrize(
    ("field", "value", "active"),
    [
        ("mlp_only_layers", [0, 47], 3_353_032_704 + 2 * (3 * 2048 * (6144 - 8 * 768) - 128 * 2048)),
        ("num_experts_per_tok", 4, 3_353_032_704 - 48 * 3 * 2048 * 4 * 768),
    ],
)
def test_fields_of_experts_count(field: str, value: object, active: int) -> None:
    assert forecast.shape({**QWEN3_MOE_30B, field: value}).active_parameters == active


def test_a_checkpoint_in_fewer_bits_stays_so() -> None:
    shape = forecast.shape(QWEN3_MOE_30B | {"quantization_config": {"quant_method": "awq", "bits": 4}})
    plain = shape.parameters - shape.matrices
    assert shape.weights_bytes("bfloat16") == plain * 2 + shape.matrices * 10 // 16
    assert shape.weights_bytes("bfloat16", "none") == shape.parameters * 2
    assert shape.weights_bytes("bfloat16", "int8") == forecast.shape(QWEN3_MOE_30B).weights_bytes("bfloat16", "int8")


def test_routers_are_not_quantized() -> None:
    shape = forecast.shape(QWEN3_MOE_30B)
    routers = 48 * 128 * 2048
    rest = shape.parameters - shape.matrices - shape.head
    assert rest == routers + 48 * (2 * 2048 + 2 * 128) + 2048 + 151936 * 2048
    assert shape.weights_bytes("bfloat16", "int4") == rest * 2 + (shape.matrices * 10 + shape.head * 17) // 16


@pytest.mark.parametrize(
    ("config", "parameters", "kv_bytes"),
    [
        (LLAMA_8B, 8_030_261_248, 131_072),
        (QWEN2_HALF_B, 494_032_768, 12_288),
        (QWEN3_HALF_B, 596_049_920, 114_688),
    ],
)
def test_published_sizes_are_met_exactly(config: dict[str, object], parameters: int, kv_bytes: int) -> None:
    shape = forecast.shape(config)
    assert shape.parameters == parameters
    assert shape.kv_bytes_per_token("bfloat16") == kv_bytes
    assert shape.dtype == "bfloat16"


def test_a_state_counts_as_a_block_that_has_as_many_bytes() -> None:
    shape = forecast.shape(QWEN3_NEXT_80B)
    state_bytes = 4 * (3 * (2 * 16 * 128 + 32 * 128) + 32 * 128 * 128)
    assert shape.state_bytes == state_bytes
    assert shape.block_tokens == 1072  # of 2 KiB in a layer, the next multiple of 16
    assert shape.kv_bytes_per_token("bfloat16") == 4 * 12 * 2048  # three groups of states, and one of keys and values
    assert shape.sequence_tokens(1000, 1) == 1072
    assert shape.sequence_tokens(32 * 1072, 1) == (32 + 3 * 3) * 1072 // 4
    assert shape.longest_sequence(10 * 1072, 1, 1 << 18) == (40 - 3 * 3) * 1072


def test_an_8_bit_cache_holds_nearly_twice_as_many_tokens() -> None:
    model = forecast.shape(LLAMA_8B)
    assert model.kv_bytes_per_token("int8") == 2 * 32 * 8 * (128 + 4)
    assert model.kv_bytes_per_token("int4") == 2 * 32 * 8 * (64 + 4)
    assert model.kv_bytes_per_token("fp8") == 2 * 32 * 8 * 128
    wide, narrow = (
        forecast.fit(
            model,
            memory_bytes=24 * 2**30,
            memory_fraction=0.9,
            dtype="bfloat16",
            max_model_len=8192,
            max_batch_tokens=0,
            kv_cache_dtype=cached,
        )
        for cached in ("auto", "int8")
    )
    assert narrow.kv_tokens / wide.kv_tokens == pytest.approx(256 / 132, rel=1e-3)


@pytest.mark.parametrize(("gib", "verdict"), [(80, "Fits"), (16, "TooSmall")])
def test_verdict_follows_memory(gib: int, verdict: str) -> None:
    fit = forecast.fit(
        forecast.shape(LLAMA_8B),
        memory_bytes=gib * 2**30,
        memory_fraction=0.9,
        dtype="bfloat16",
        max_model_len=8192,
        max_batch_tokens=8192,
    )
    assert fit.verdict == verdict
    assert "the weights (14.96 GiB)" in fit.message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", None),
        ("num_hidden_layers", 0),
        ("num_hidden_layers", 10**9),
        ("vocab_size", "many"),
        ("intermediate_size", True),
    ],
)
def test_senseless_field_is_named(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        forecast.shape({**LLAMA_8B, field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_experts", -1), ("num_experts_per_tok", None), ("moe_intermediate_size", "wide"), ("decoder_sparse_step", 0)],
)
def test_senseless_field_of_experts_is_named(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        forecast.shape({**QWEN3_MOE_30B, field: value})


@pytest.mark.parametrize(
    ("parts", "want"),
    [
        ({"a": 3 << 30, "b": 1 << 29, "c": 5 << 20}, "a (3.00 GiB), b (0.50 GiB) and c (5 MiB) take 3.50 GiB"),
        ({"a": 3 << 30, "b": 0, "c": 2048}, "a (3.00 GiB) and c (2 KiB) take 3.00 GiB"),
        ({"a": 3 << 30, "b": 0}, "a (3.00 GiB)"),
    ],
)
def test_what_takes_memory_is_a_sentence(parts: dict[str, int], want: str) -> None:
    assert forecast.sum_of(parts) == want


LAYER_BYTES = 2 * 4096 * (4096 * 2 + 1024 * 2 + 3 * 14336)


@pytest.mark.parametrize(
    ("limit_bytes", "layers", "verdict"),
    [(0, 0, "TooSmall"), (2 * LAYER_BYTES, 0, "TooSmall"), (10 * LAYER_BYTES, 10, "Fits"), (10**12, 32, "Fits")],
)
def test_weights_on_the_host_leave_room_for_two_layers_less(limit_bytes: int, layers: int, verdict: str) -> None:
    model = forecast.shape(LLAMA_8B)
    fit = forecast.fit(
        model,
        memory_bytes=16 * 2**30,
        memory_fraction=0.9,
        dtype="bfloat16",
        max_model_len=8192,
        max_batch_tokens=0,
        weights_host_bytes=limit_bytes,
    )
    assert (fit.host_weights_bytes, fit.verdict) == (layers * LAYER_BYTES, verdict)
    assert fit.weights_bytes == model.weights_bytes("bfloat16") - max(0, layers - 2) * LAYER_BYTES
    assert ("of them on the host" in fit.message) == (layers > 0)


BGE_M3 = {
    "architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta", "hidden_size": 1024, "intermediate_size": 4096,
    "num_hidden_layers": 24, "num_attention_heads": 16, "vocab_size": 250002, "max_position_embeddings": 8194,
    "type_vocab_size": 1, "pad_token_id": 1, "torch_dtype": "float32",
}  # fmt: skip


@pytest.mark.parametrize(
    ("memory_gib", "max_model_len", "verdict"),
    [(16, 0, "Fits"), (4, 0, "TooSmall"), (4, 512, "Fits"), (2, 16, "TooSmall")],
)
def test_an_encoder_fits_where_weights_and_its_largest_step_do(
    memory_gib: int, max_model_len: int, verdict: str
) -> None:
    model = forecast.shape(BGE_M3)
    assert (model.parameters, model.max_positions) == (566_705_152, 8192)
    fit = forecast.fit(
        model,
        memory_bytes=memory_gib << 30,
        memory_fraction=0.9,
        dtype="float32",
        max_model_len=max_model_len,
        max_batch_tokens=512,
        max_sequences=64,
    )
    step_tokens = max(512, max_model_len or 8192)
    assert (fit.verdict, fit.kv_bytes_per_token) == (verdict, 0)
    assert fit.activation_bytes == step_tokens * 12 * 4096 * 4
    assert fit.kv_tokens == (64 * (max_model_len or 8192) if verdict == "Fits" else 0)
    assert fit.longest_sequence == ((max_model_len or 8192) if verdict == "Fits" else 0)
    assert "KV cache" not in fit.message
