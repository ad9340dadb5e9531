"""Every kernel compiles for Hopper at the shapes of real models, in the dtypes that the interpreter cannot compute."""

from collections.abc import Iterator

import pytest
import torch

triton = pytest.importorskip("triton")

from fakes.hopper import Hopper  # noqa: E402 -- behind the question whether there is a triton
from kvasir_runtime.kernels.gpu.table import TRITON  # noqa: E402
from kvasir_runtime.kernels.sample import Draws  # noqa: E402
from kvasir_runtime.kernels.spans import Spans  # noqa: E402

BFLOAT16 = torch.bfloat16


@pytest.fixture(scope="module")
def hopper() -> Iterator[Hopper]:
    fake = Hopper()
    triton.runtime.driver.set_active(fake)
    yield fake
    triton.runtime.driver.set_active(None)


# heads, key heads, head size, query lengths, known lengths, window, dtype, block size
ATTENTION = {
    "decode": (32, 8, 128, [1] * 4, [9000] * 4, 0, BFLOAT16, 16),
    "decode-large-blocks": (32, 8, 128, [1] * 4, [9000] * 4, 0, BFLOAT16, 64),
    "decode-window": (32, 8, 128, [1] * 4, [9000] * 4, 4096, BFLOAT16, 16),
    "verify": (32, 8, 128, [5] * 2, [900] * 2, 0, BFLOAT16, 16),
    "prefill": (32, 8, 128, [700, 1], [700, 90], 0, BFLOAT16, 16),
    "prefill-80": (32, 32, 80, [300], [300], 0, BFLOAT16, 16),
    "prefill-256-window": (8, 1, 256, [300, 1], [900, 5000], 512, BFLOAT16, 16),
    "decode-256-float32": (16, 16, 256, [1], [2000], 0, torch.float32, 16),
    "prefill-float32": (28, 4, 128, [100], [100], 0, torch.float32, 16),
    "prefill-256-float32": (4, 4, 256, [100], [100], 0, torch.float32, 16),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_compiles(hopper: Hopper, name: str) -> None:
    heads, kv_heads, head, query_lens, kv_lens, window, dtype, block_size = ATTENTION[name]
    cache = torch.zeros(2, 2, block_size, kv_heads, head, dtype=dtype)
    tables = torch.zeros(len(kv_lens), -(-max(kv_lens) // block_size), dtype=torch.int64)
    query = torch.zeros(sum(query_lens), heads, head, dtype=dtype)
    spans = Spans(query_lens, kv_lens, tables, [-1] * len(kv_lens))
    TRITON.attention(query, cache, spans, 0.1, window)
    assert hopper.spilled_bytes("_attend")[-1:] == [0]


@pytest.mark.parametrize(("heads", "kv_heads", "head", "normed"), [(32, 8, 128, False), (28, 4, 80, True)])
def test_what_follows_a_projection_compiles(hopper: Hopper, heads: int, kv_heads: int, head: int, normed: bool) -> None:
    qkv = torch.zeros(3, heads + 2 * kv_heads, head, dtype=BFLOAT16)
    norm = torch.zeros(heads + kv_heads, head, dtype=BFLOAT16) if normed else None
    angles, slots = torch.zeros(3, 1, head, dtype=BFLOAT16), torch.arange(3)
    cache = torch.zeros(2, 2, 16, kv_heads, head, dtype=BFLOAT16)
    TRITON.split_qkv(qkv, norm, 1e-6, angles, angles, cache, slots)
    TRITON.rope(qkv[:, :heads], angles, angles)
    TRITON.write_kv(qkv[:, :kv_heads], qkv[:, kv_heads : 2 * kv_heads], cache, slots)
    assert {"_split_qkv", "_rope", "_write_kv"} <= set(hopper.loaded)


def test_rows_compile(hopper: Hopper) -> None:
    hidden = torch.zeros(3, 4096, dtype=BFLOAT16)
    TRITON.rms_norm(hidden, hidden.clone(), hidden[0], 1e-5)
    TRITON.rms_norm(hidden, None, hidden[0], 1e-5)
    TRITON.rms_norm(torch.zeros(3, 40, 128, dtype=BFLOAT16), None, torch.zeros(40, 128, dtype=BFLOAT16), 1e-5)
    TRITON.silu_mul(torch.zeros(3, 2 * 14336, dtype=BFLOAT16))
    assert {"_rms_norm", "_silu_mul"} <= set(hopper.loaded)


@pytest.mark.parametrize("all_greedy", [True, False])
@pytest.mark.parametrize("any_filter", [True, False])
@pytest.mark.parametrize("vocab", [32_000, 128_256, 151_936])
def test_sampling_compiles(hopper: Hopper, vocab: int, all_greedy: bool, any_filter: bool) -> None:
    ones, none = torch.ones(2), torch.zeros(2, dtype=torch.int64)
    draws = Draws(
        temperature=ones, top_k=none, top_p=ones, min_p=ones, seed=none, position=none,
        all_greedy=all_greedy, any_filter=any_filter,
    )  # fmt: skip
    TRITON.sample(torch.zeros(2, vocab), draws)
    used = ("_scan", "_settle", "_gather") if any_filter and not all_greedy else ("_scan", "_settle")
    assert [hopper.spilled_bytes(name)[-1] for name in used] == [0] * len(used)
