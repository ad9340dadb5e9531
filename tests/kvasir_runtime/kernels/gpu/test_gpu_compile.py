"""Every kernel compiles for Hopper at the shapes of real models, in the dtypes that the interpreter cannot compute."""

from dataclasses import dataclass

import pytest
import torch

pytest.importorskip("triton")

from fakes.cache_layers import layer_of
from fakes.hopper import Hopper
from kvasir_runtime.kernels import kv_quant
from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.kernels.gpu.ops import TRITON
from kvasir_runtime.kernels.kv_quant import FLOAT8, INT4
from kvasir_runtime.kernels.sample import Draws

BFLOAT16 = torch.bfloat16


@dataclass(frozen=True, kw_only=True)
class Served:
    """A shape that is served."""

    heads: int = 32
    kv_heads: int = 8
    head: int = 128
    query_lens: tuple[int, ...] = (1,) * 4
    kv_lens: tuple[int, ...] = (9000,) * 4
    window: int = 0
    dtype: torch.dtype = BFLOAT16
    cached: torch.dtype | None = None
    block_size: int = 16
    softcap: float = 0.0
    sinks: bool = False
    chunk: int = 0
    slopes: bool = False


VERIFY = {"query_lens": (5,) * 2, "kv_lens": (900,) * 2}
PREFILL = {"query_lens": (700, 1), "kv_lens": (700, 90)}
GEMMA2 = {"heads": 16, "kv_heads": 8, "head": 256, "window": 4096, "softcap": 50.0}
GPT_OSS = {"heads": 64, "head": 64, "sinks": True}
ATTENTION = {
    "decode": Served(),
    "decode-large-blocks": Served(block_size=64),
    "decode-window": Served(window=4096),
    "verify": Served(**VERIFY),
    "prefill": Served(**PREFILL),
    "prefill-80": Served(kv_heads=32, head=80, query_lens=(300,), kv_lens=(300,)),
    "prefill-256-window": Served(heads=8, kv_heads=1, head=256, query_lens=(300, 1), kv_lens=(900, 5000), window=512),
    "decode-256-float32": Served(
        heads=16, kv_heads=16, head=256, query_lens=(1,), kv_lens=(2000,), dtype=torch.float32
    ),
    "prefill-float32": Served(heads=28, kv_heads=4, query_lens=(100,), kv_lens=(100,), dtype=torch.float32),
    "prefill-256-float32": Served(
        heads=4, kv_heads=4, head=256, query_lens=(100,), kv_lens=(100,), dtype=torch.float32
    ),
    "decode-int8": Served(cached=torch.int8),
    "prefill-int8": Served(cached=torch.int8, **PREFILL),
    "decode-int4": Served(cached=INT4),
    "prefill-int4": Served(cached=INT4, **PREFILL),
    "decode-float8": Served(cached=FLOAT8),
    "prefill-float8": Served(cached=FLOAT8, **PREFILL),
    "prefill-gemma2": Served(**GEMMA2, **PREFILL),
    "decode-chunked": Served(chunk=8192),
    "prefill-chunked": Served(chunk=256, **PREFILL),
    "decode-gpt-oss": Served(**GPT_OSS),
    "prefill-gpt-oss": Served(**GPT_OSS, **PREFILL),
    "decode-mpt": Served(heads=32, kv_heads=32, slopes=True),
    "prefill-mpt": Served(heads=32, kv_heads=32, slopes=True, **PREFILL),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_compiles(hopper: Hopper, name: str) -> None:
    how = ATTENTION[name]
    cached = how.cached or how.dtype
    row = kv_quant.width(how.head, cached)
    cache = layer_of(torch.zeros(2, 2, how.block_size, how.kv_heads, row, dtype=torch.uint8).to(cached))
    tables = torch.zeros(len(how.kv_lens), -(-max(how.kv_lens) // how.block_size), dtype=torch.int64)
    query = torch.zeros(sum(how.query_lens), how.heads, how.head, dtype=how.dtype)
    attn_metadata = AttentionMetadata(how.query_lens, how.kv_lens, tables)
    sinks = torch.zeros(how.heads) if how.sinks else None
    slopes = torch.zeros(how.heads) if how.slopes else None
    changed = (how.softcap, sinks, how.chunk, 0, slopes)
    TRITON.attention(query, cache, attn_metadata, 0.1, how.window, *changed)
    assert hopper.spilled_bytes("attend")[-1:] == [0]


@pytest.mark.parametrize(("heads", "kv_heads", "head", "normed"), [(32, 8, 128, False), (28, 4, 80, True)])
@pytest.mark.parametrize("cached", [BFLOAT16, torch.int8, INT4, FLOAT8])
def test_what_follows_a_projection_compiles(
    hopper: Hopper, heads: int, kv_heads: int, head: int, normed: bool, cached: torch.dtype
) -> None:
    qkv = torch.zeros(3, heads + 2 * kv_heads, head, dtype=BFLOAT16)
    norm = torch.zeros(heads + kv_heads, head, dtype=BFLOAT16) if normed else None
    angles, slots = torch.zeros(3, 1, head, dtype=BFLOAT16), torch.arange(3)
    cache = layer_of(torch.zeros(2, 2, 16, kv_heads, kv_quant.width(head, cached), dtype=torch.uint8).to(cached))
    TRITON.split_qkv(qkv, norm, 1e-6, angles, angles, cache, slots)
    TRITON.rope(qkv[:, :heads], angles, angles)
    TRITON.write_kv(qkv[:, :kv_heads], qkv[:, kv_heads : 2 * kv_heads], cache, slots)
    assert [hopper.spilled_bytes(name)[-1] for name in ("_split_qkv", "_rope", "_write_kv")] == [0, 0, 0]


def test_rows_compile(hopper: Hopper) -> None:
    hidden = torch.zeros(3, 4096, dtype=BFLOAT16)
    TRITON.rms_norm(hidden, hidden.clone(), hidden[0], 1e-5)
    TRITON.rms_norm(hidden, None, hidden[0], 1e-5)
    TRITON.rms_norm(torch.zeros(3, 40, 128, dtype=BFLOAT16), None, torch.zeros(40, 128, dtype=BFLOAT16), 1e-5)
    TRITON.rms_norm(hidden, None, torch.zeros(4096), 1e-5)
    for activation in ("silu", "gelu"):
        TRITON.act_and_mul(torch.zeros(3, 2 * 14336, dtype=BFLOAT16), activation)
    assert "_rms_norm" in hopper.loaded
    assert len(hopper.loaded["_act_and_mul"]) >= 2


def test_what_surrounds_a_step_compiles(hopper: Hopper) -> None:
    rows, lens = torch.arange(3), torch.zeros(4, dtype=torch.int32)
    tokens, tables = torch.zeros(4, 131_073, dtype=torch.int32), torch.zeros(2, 4, 8192, dtype=torch.int32)
    TRITON.step_inputs(rows, lens, lens, tokens, tables, 16, 3, 1)
    TRITON.append_ids(rows, rows, lens, tokens, lens)
    assert {"_step_inputs", "_append_ids"} <= set(hopper.loaded)


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
