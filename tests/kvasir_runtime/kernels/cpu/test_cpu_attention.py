"""Attention in C++ beyond the small cases of the table: long sequences, wide heads, windows, company in the batch."""

import ctypes
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fakes.cache_layers import layer_of
from fakes.cpu_variants import EMULATED_AMX, VARIANTS
from kvasir_runtime.kernels import attention, kv_quant
from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.kernels.cpu import bindings, build, structs
from kvasir_runtime.kernels.cpu.bindings import CpuKernels
from kvasir_runtime.kernels.cpu.library import Library
from kvasir_runtime.kernels.cpu.step_structs import BatchStruct, ExpertsStruct, LayerStruct, ModelStruct

BATCHES = [((1, 1, 600, 33), (700, 255, 1100, 300)), ((64,), (1111,)), ((1,), (4100,)), ((1, 2, 40), (513, 256, 40))]
HEADS = [(12, 4, 64, 16), (14, 2, 64, 128), (3, 1, 80, 8), (2, 2, 256, 32), (64, 1, 16, 64), (15, 3, 128, 16)]
WORST = {torch.float32: 3e-6, torch.bfloat16: 1e-2}  # absolute and relative: two roundings of weights and result


@pytest.fixture(params=[*VARIANTS, "processor_amx", EMULATED_AMX])
def variant(request: pytest.FixtureRequest, cpu_library: Library, of_variant: Callable[[str], Library]) -> CpuKernels:
    """Each variant that this processor runs or emulates, and AMX, the processor's or emulated."""
    if request.param in build.VARIANTS:
        return bindings.cpu_kernels(of_variant(request.param))
    found: Library = request.getfixturevalue(request.param)
    made = bindings.cpu_kernels(replace(cpu_library, amx=found.amx))
    return replace(made, _attention=found.function("attention", ctypes.c_void_p))


def case(heads: tuple[int, int, int, int], batch: tuple[tuple[int, ...], tuple[int, ...]]) -> tuple[Tensor, ...]:
    """query and cache in float32, and tables of scattered blocks."""
    generator = torch.Generator().manual_seed(7)
    (num_heads, kv_heads, head_dim, block_size), (query_lens, kv_lens) = heads, batch
    columns = -(-max(kv_lens) // block_size)
    num_blocks = columns * len(kv_lens) + 3
    cache = torch.randn(2, num_blocks, block_size, kv_heads, head_dim, generator=generator)
    tables = torch.randperm(num_blocks, generator=generator)[:-3].view(len(kv_lens), columns)
    return torch.randn(sum(query_lens), num_heads, head_dim, generator=generator), layer_of(cache), tables


@pytest.mark.parametrize(("window", "chunk"), [(0, 0), (100, 0), (0, 90)])
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("heads", HEADS)
def test_every_variant_agrees_and_neighbours_change_no_bit(
    variant: CpuKernels,
    heads: tuple[int, int, int, int],
    batch: tuple[tuple[int, ...], tuple[int, ...]],
    window: int,
    chunk: int,
) -> None:
    query, cache, tables = case(heads, batch)
    scale, (query_lens, kv_lens) = heads[2] ** -0.5, batch
    for dtype, worst in WORST.items():
        given, kept = query.to(dtype), layer_of(cache.to(dtype))
        attn_metadata = AttentionMetadata(query_lens, kv_lens, tables)
        want = attention.reference(given.float(), kept.float(), attn_metadata, scale, window, chunk=chunk)
        got = variant.attention(given, kept, attn_metadata, scale, window, chunk=chunk)
        assert got.dtype == dtype
        torch.testing.assert_close(got.float(), want, atol=worst, rtol=worst)
        parts = given.split(list(query_lens))
        for index, mine in enumerate(got.split(list(query_lens))):
            one = slice(index, index + 1)
            alone = AttentionMetadata(query_lens[one], kv_lens[one], tables[one])
            assert torch.equal(variant.attention(parts[index], kept, alone, scale, window, chunk=chunk), mine)


@pytest.mark.parametrize("cap", [0.5, 30.0])
@pytest.mark.parametrize("batch", BATCHES[:2])
@pytest.mark.parametrize("heads", [HEADS[0], HEADS[3], HEADS[5]])
def test_every_variant_caps_scores(
    variant: CpuKernels, heads: tuple[int, int, int, int], batch: tuple[tuple[int, ...], tuple[int, ...]], cap: float
) -> None:
    query, cache, tables = case(heads, batch)
    query *= 4  # so that most scores reach the smaller cap, and some the larger
    attn_metadata = AttentionMetadata(*batch, tables)
    for dtype, worst in WORST.items():
        given = query.to(dtype)
        for kept in (layer_of(cache.to(dtype)), layer_of(kv_quant.stored(cache, torch.int8))):
            want = attention.reference(given.float(), float_of(kept), attn_metadata, 0.5, 100, cap)
            got = variant.attention(given, kept, attn_metadata, 0.5, 100, cap)
            allowed = 3 * worst + 1e-6 * cap  # a score is as exact as float32 of the cap's size
            torch.testing.assert_close(got.float(), want, atol=allowed, rtol=allowed)


def float_of(layer: Tensor) -> Tensor:
    """A layer of the cache for a reference in float32."""
    return layer if layer.dtype == torch.int8 else layer_of(layer.float())


@pytest.mark.parametrize("cached", [torch.int8, kv_quant.INT4])
@pytest.mark.parametrize("heads", HEADS)
def test_every_variant_reads_a_cache_of_fewer_bits(
    variant: CpuKernels, heads: tuple[int, int, int, int], cached: torch.dtype
) -> None:
    query, cache, tables = case(heads, BATCHES[0])
    scale, (query_lens, kv_lens) = heads[2] ** -0.5, BATCHES[0]
    kept, attn_metadata = layer_of(kv_quant.stored(cache, cached)), AttentionMetadata(query_lens, kv_lens, tables)
    for dtype, worst in WORST.items():
        given = query.to(dtype)
        want = attention.reference(given.float(), kept, attn_metadata, scale, 100)
        got = variant.attention(given, kept, attn_metadata, scale, 100)
        torch.testing.assert_close(got.float(), want, atol=2 * worst, rtol=worst)
        parts = given.split(list(query_lens))
        for index, mine in enumerate(got.split(list(query_lens))):
            one = slice(index, index + 1)
            alone = AttentionMetadata(query_lens[one], kv_lens[one], tables[one])
            assert torch.equal(variant.attention(parts[index], kept, alone, scale, 100), mine)


@pytest.mark.parametrize(
    ("window", "chunk", "cached"),
    [
        (0, 0, torch.float32),
        (300, 0, torch.float32),
        (0, 290, torch.float32),
        (0, 0, kv_quant.INT4),
        (0, 0, torch.bfloat16),
        (300, 0, torch.int8),
    ],
)
@pytest.mark.parametrize("heads", HEADS)
def test_a_token_has_the_same_bits_however_much_of_its_sequence_comes_with_it(
    variant: CpuKernels, heads: tuple[int, int, int, int], window: int, chunk: int, cached: torch.dtype
) -> None:
    """All at once, as a prompt is, some, as drafts are, or one by one, as an answer is: so that one that is computed
    again is the same. In bfloat16 where that is asked for.
    """
    length = 800
    query, cache, tables = case(heads, ((length,), (length,)))
    if cached in (torch.bfloat16, torch.int8):
        query, cache = query.bfloat16(), cache.bfloat16()
        variant = replace(variant, _amx=False, _invariant=True)
    cache = layer_of(kv_quant.stored(cache, cached))
    whole = variant.attention(query, cache, AttentionMetadata((length,), (length,), tables), 0.3, window, chunk=chunk)
    for count in (1, 7, 64, 300):
        for end in (count, 255 + count, 256 + count, 400 + count, 500 + count):
            part = AttentionMetadata((count,), (end,), tables)
            got = variant.attention(query[end - count : end], cache, part, 0.3, window, chunk=chunk)
            assert torch.equal(got, whole[end - count : end]), (count, end)


def test_extreme_scores_stay_finite(variant: CpuKernels) -> None:
    query, cache, tables = case(HEADS[0], ((1, 20), (300, 20)))
    attn_metadata = AttentionMetadata((1, 20), (300, 20), tables)
    query *= 1e4
    got = variant.attention(query, cache, attn_metadata, 1.0, 0)
    torch.testing.assert_close(got, attention.reference(query, cache, attn_metadata, 1.0, 0), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("window", [0, 37])
@pytest.mark.parametrize("cached", [torch.bfloat16, torch.int8])
def test_what_lies_beside_a_sequence_is_not_seen(variant: CpuKernels, window: int, cached: torch.dtype) -> None:
    """Places of the last block that nobody has written, and those that a window has left, may hold anything."""
    query, cache, tables = case(HEADS[0], BATCHES[3])
    query, cache = query.bfloat16(), layer_of(kv_quant.stored(cache.bfloat16(), cached))
    query_lens, kv_lens = BATCHES[3]
    attn_metadata = AttentionMetadata(query_lens, kv_lens, tables)
    clean = variant.attention(query, cache, attn_metadata, 0.125, window)
    places = torch.full(cache.shape[1:3], True)
    for table_of, queries, end in zip(tables, query_lens, kv_lens, strict=True):
        seen = torch.arange(end - queries + 1 - window if window else 0, end).clamp(min=0)
        places[table_of[seen // 16], seen % 16] = False
    cache[:, places] = float("nan") if cached.is_floating_point else -1  # as bytes of a scale, no number either
    assert torch.equal(variant.attention(query, cache, attn_metadata, 0.125, window), clean)


def test_short_sequences_are_left_to_the_other_kernel(cpu_library: Library, processor_amx: Library) -> None:
    query, cache, tables = case(HEADS[0], ((5, 6), (300, 700)))
    query, cache = query.bfloat16(), layer_of(cache.bfloat16())
    attn_metadata = AttentionMetadata((5, 6), (300, 700), tables)
    made = [bindings.cpu_kernels(library) for library in (cpu_library, processor_amx)]
    without, with_amx = (kernels.attention(query, cache, attn_metadata, 0.125, 0) for kernels in made)
    assert torch.equal(with_amx[:5], without[:5]), "15 rows of three heads"
    assert not torch.equal(with_amx[5:], without[5:]), "18 rows"


def test_structs_are_as_large_as_the_headers_say(probes: Library) -> None:
    """A field that only one side has would be read as its neighbour."""
    named = ("Sequences", "AttentionArgs", "NormArgs", "SplitArgs", "ActAndMulArgs", "GatherArgs", "ArgmaxArgs")
    of_step = {"Experts": ExpertsStruct, "StepLayer": LayerStruct, "StepModel": ModelStruct, "StepBatch": BatchStruct}
    structs_of = {name: getattr(structs, name) for name in named} | of_step
    for name, struct in structs_of.items():
        size = getattr(probes.handle, f"kvasir_sizeof_{name}")
        assert size() == ctypes.sizeof(struct), name
