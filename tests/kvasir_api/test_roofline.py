"""How fast a model could decode: the numbers by hand, and the bounds that no step can pass."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.models import LLAMA_8B, facts
from kvasir_api import forecast
from kvasir_api.inspection import predicted, roofline
from kvasir_api.options import RuntimeOptions
from kvasir_api.roofline import LAYER_S, ROW_S, STEP_S, Card, Roofline

H100 = Card(memory_bytes_per_s=3350 * 10**9, flops_per_s=989 * 10**12, fp8_flops_per_s=1979 * 10**12)
BESIDES = STEP_S + 32 * LAYER_S
HEAD = 128256 * 4096
"""Weights of the table of embeddings, and of the head."""
WEIGHTS = 8_030_261_248
MIXTURE = {
    "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 32768,
    "num_local_experts": 8, "num_experts_per_tok": 2, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip


def line(config: Any = LLAMA_8B, card: Card = H100, **options: Any) -> Roofline:
    found = roofline(facts(shape=forecast.shape(config)), RuntimeOptions(**options), card)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("rows", "kv_tokens", "options", "bound"),
    [
        (1, 0, {}, 2 * (WEIGHTS - HEAD) / 3.35e12),
        (1, 1024, {}, (2 * (WEIGHTS - HEAD) + 1024 * 131072) / 3.35e12),
        (64, 64 * 1024, {}, (2 * (WEIGHTS - HEAD) + 64 * 1024 * 131072) / 3.35e12),
        (64, 64 * 1024, {"kv_cache_dtype": "fp8"}, (2 * (WEIGHTS - HEAD) + 64 * 1024 * 65536) / 3.35e12),
        (1024, 0, {}, 1024 * 2 * (WEIGHTS - HEAD) / 989e12),
        (1024, 0, {"quantization": "int8"}, 1024 * 2 * (WEIGHTS - HEAD) / 989e12),
        (1024, 0, {"quantization": "fp8"}, 1024 * 2 * (WEIGHTS - HEAD) / 1979e12),
        (1024, 4096, {}, (1024 * 2 * (WEIGHTS - HEAD) + 4 * 32 * 4096 * 4096) / 989e12),
    ],
)
def test_a_step_takes_what_it_moves_or_multiplies(rows: int, kv_tokens: int, options: Any, bound: float) -> None:
    assert line(**options).step_s(rows, kv_tokens) == pytest.approx(bound + BESIDES + ROW_S * rows, rel=1e-9)


def test_fewer_bits_are_read_faster() -> None:
    times = [line(quantization=bits).step_s(1, 0) for bits in ("none", "int8", "fp8", "int4")]
    assert times == sorted(times, reverse=True)
    assert (times[0] - BESIDES - ROW_S) / (times[3] - BESIDES - ROW_S) == pytest.approx(16 * 2 / 10, rel=0.06)


@pytest.mark.parametrize(("rows", "experts"), [(1, 2), (2, 3.5), (1000, 8)])
def test_of_experts_those_are_read_that_some_row_goes_to(rows: int, experts: float) -> None:
    one, table = 3 * 4096 * 14336 * 32, 32000 * 4096
    resident = 46_702_792_704 - table - 8 * one
    card = Card(memory_bytes_per_s=10**12, flops_per_s=10**18)
    found = line(MIXTURE, card).step_s(rows, 0) - STEP_S - 32 * LAYER_S - ROW_S * rows
    assert found * 1e12 == pytest.approx(2 * (resident + experts * one), rel=1e-6)


WINDOWS = {
    **LLAMA_8B, "model_type": "gemma3_text", "head_dim": 128, "sliding_window": 1024, "num_hidden_layers": 12,
}  # fmt: skip
"""Two layers that see everything, ten that see 1,024 tokens."""


@pytest.mark.parametrize(
    ("rows", "kv_tokens", "seen"),
    [(1, 100, 12 * 100), (1, 9000, 10 * 1024 + 2 * 9000), (4, 9000, 4 * 10 * 1024 + 2 * 9000), (9, 9000, 12 * 9000)],
)
def test_a_window_reads_no_further_back(rows: int, kv_tokens: int, seen: int) -> None:
    assert line(WINDOWS).work.context_bytes(rows, kv_tokens) == pytest.approx(seen * 2 * 8 * 128 * 2)


def test_of_a_state_every_step_reads_and_writes_the_whole() -> None:
    found = line({**LLAMA_8B, "model_type": "qwen3_next", "head_dim": 128})
    state = 4 * (3 * (2 * 16 * 128 + 32 * 128) + 32 * 128 * 128)
    assert found.work.context_bytes(5, 0) == 5 * 24 * 2 * state
    assert found.work.context_bytes(5, 500) == 5 * (24 * 2 * state + 8 * 100 * 2 * 8 * 128 * 2)


def test_a_full_batch_of_windows_is_as_long_as_the_cache_holds() -> None:
    """20 rows take 60,000 tokens of capacity that full attention would fill with 3,000 tokens each."""
    found = predicted(
        facts(shape=forecast.shape(WINDOWS)),
        RuntimeOptions(max_sequences=20, kv_cache_tokens=60_000),
        device="cuda",
        memory_bytes=80 << 30,
        card=H100,
    )
    longest = forecast.shape(WINDOWS).longest_sequence(3000, 1, 131072)
    assert longest > 10_000
    assert found.batch_tokens_per_s == pytest.approx(20 / line(WINDOWS).step_s(20, 20 * longest))


def test_a_tied_table_is_read_as_the_head() -> None:
    small = line({**LLAMA_8B, "tie_word_embeddings": True})
    assert small.step_s(1, 0) == line().step_s(1, 0)


def test_facts_that_tell_nothing_of_experts_expect_all_to_be_read() -> None:
    whole, old = line(MIXTURE), facts(shape=forecast.shape({**MIXTURE}))
    shape = old.shape.__class__(
        **{name: getattr(old.shape, name) for name in old.shape.__slots__} | {"experts": 0, "chosen_experts": 0}
    )
    unknown = roofline(facts(shape=shape), RuntimeOptions(), H100)
    assert unknown is not None
    assert unknown.step_s(1, 0) > whole.step_s(1, 0)


@pytest.mark.parametrize("options", [{"dtype": "float32"}])
def test_of_32_bits_nothing_is_told(options: Any) -> None:
    assert roofline(facts(), RuntimeOptions(**options), H100) is None
    assert predicted(facts(), RuntimeOptions(**options), device="cuda", memory_bytes=80 << 30, card=H100) == predicted(
        facts(), RuntimeOptions(**options), device="cuda", memory_bytes=80 << 30
    )


def test_the_forecast_tells_one_stream_a_full_batch_and_prompts() -> None:
    found = predicted(facts(), RuntimeOptions(), device="cuda", memory_bytes=80 << 30, card=H100)
    # 15 GB and 1024 tokens of 128 KiB at 3.35 TB/s; 15 GB and 53.8 GiB of cache for 256 rows; 7 G weights of layers.
    assert round(found.stream_tokens_per_s) == 181
    assert round(found.batch_tokens_per_s, -2) == 10_100
    assert found.prefill_tokens_per_s == pytest.approx(989e12 / 2 / (WEIGHTS - 2 * HEAD))


@pytest.mark.parametrize(("options", "rows"), [({"max_sequences": 8}, 8), ({"kv_cache_tokens": 64}, 4)])
def test_a_full_batch_is_what_rows_and_cache_allow(options: Any, rows: int) -> None:
    found = predicted(facts(), RuntimeOptions(**options), device="cuda", memory_bytes=80 << 30, card=H100)
    tokens = rows * min(found.kv_tokens // rows, 131072)
    assert found.batch_tokens_per_s == pytest.approx(rows / line(**options).step_s(rows, tokens))


def test_a_model_without_a_head_reads_prompts_alone() -> None:
    shape = forecast.shape({**LLAMA_8B, "architectures": ["LlamaModel"]})
    found = predicted(facts(shape=shape), RuntimeOptions(), device="cuda", memory_bytes=80 << 30, card=H100)
    assert (found.stream_tokens_per_s, found.batch_tokens_per_s) == (0, 0)
    assert found.prefill_tokens_per_s == pytest.approx(989e12 / 2 / (WEIGHTS - 2 * HEAD), rel=1e-3)


@given(rows=st.floats(1, 5000), kv_tokens=st.floats(0, 1e8), more=st.floats(1, 10))
def test_more_work_never_takes_less(rows: float, kv_tokens: float, more: float) -> None:
    """But for the rounding of a division: 51 rows of 3,494,921 tokens take a little more than 51.00000000000001."""
    for found in (line(), line(MIXTURE), line(quantization="int4")):
        step = found.step_s(rows, kv_tokens)
        assert step <= found.step_s(rows * more, kv_tokens) * (1 + 1e-12)
        assert step <= found.step_s(rows, kv_tokens * more) * (1 + 1e-12)
        assert step >= found.work.context_bytes(rows, kv_tokens) / H100.memory_bytes_per_s
