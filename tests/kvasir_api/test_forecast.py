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


def test_an_8_bit_cache_holds_nearly_twice_as_many_tokens() -> None:
    model = forecast.shape(LLAMA_8B)
    assert model.kv_bytes_per_token("int8") == 2 * 32 * 8 * (128 + 4)
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
    assert "weights 14.96 GiB" in fit.message


@pytest.mark.parametrize(
    ("field", "value"),
    [("hidden_size", None), ("num_hidden_layers", 0), ("vocab_size", "many"), ("intermediate_size", True)],
)
def test_senseless_field_is_named(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        forecast.shape({**LLAMA_8B, field: value})
