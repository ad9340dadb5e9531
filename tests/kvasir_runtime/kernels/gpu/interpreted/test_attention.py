"""Attention over ragged batches of all kinds, with tiles small enough that every path is taken by short sequences."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import triton_device

DEVICE = triton_device.device()

from fakes.cache_layers import layer_of  # noqa: E402 -- behind the question where it can run
from kvasir_runtime.kernels import attention as operation  # noqa: E402
from kvasir_runtime.kernels import kv_quant  # noqa: E402
from kvasir_runtime.kernels.attention_metadata import AttentionMetadata  # noqa: E402
from kvasir_runtime.kernels.gpu import attention  # noqa: E402
from kvasir_runtime.kernels.gpu.attention_tiles import AttentionTiles  # noqa: E402

SEQUENCES = st.lists(st.tuples(st.integers(1, 12), st.sampled_from([0, 1, 15, 16, 40])), min_size=1, max_size=3)


def both(
    sequences: list[tuple[int, int]], *, heads: int, kv_heads: int, head: int, window: int, block_size: int,
    block_m: int, tile: int, processors: int, dtype: torch.dtype = torch.float32,
    cached: torch.dtype | None = None, softcap: float = 0.0, with_sinks: bool = False, padding: int = 0,
    chunk: int = 0, value_dim: int = 0, with_slopes: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """What the reference and the kernels say. sequences: query tokens, and positions cached before them.

    value_dim: where rows are latent.

    padding: sequences without tokens behind them, and as many tokens; then only the device knows the lengths.
    """
    generator = torch.Generator().manual_seed(len(sequences) + head)
    query_lens, kv_lens = [n for n, _ in sequences], [n + before for n, before in sequences]
    columns = -(-max(kv_lens) // block_size)
    num_blocks = columns * len(sequences) + 1
    cache = torch.randn(2, num_blocks, block_size, kv_heads, head, generator=generator).to(dtype)
    tables = torch.randperm(num_blocks - 1, generator=generator).view(len(sequences), columns) + 1
    for row, known in enumerate(kv_lens):
        # What no sequence wrote may be anything, and so may the rest of a table.
        cache[:, tables[row, known // block_size] if known % block_size else 0, known % block_size :] = float("nan")
        tables[row, -(-known // block_size) :] = 1 << 40
        # Blocks that no query sees may be another sequence's by now.
        tables[row, : operation.first_seen(known - query_lens[row], window, chunk) // block_size] = 0
    query = torch.randn(sum(query_lens) + padding, heads, head, generator=generator).to(dtype)
    sinks = torch.randn(heads, generator=generator) * 2 if with_sinks else None
    slopes = torch.rand(heads, generator=generator) if with_slopes else None
    cache[:, 0] = float("nan")
    cache = kv_quant.stored(cache, cached or dtype)
    cache = layer_of(cache[:1].expand(2, -1, -1, -1, -1) if value_dim else cache)
    attn_metadata = AttentionMetadata(query_lens, kv_lens, tables)
    want = operation.reference(
        query[: sum(query_lens)], cache, attn_metadata, head**-0.5, window, softcap, sinks, chunk, value_dim, slopes
    )
    on_device = attn_metadata.moved(DEVICE)
    if padding:
        starts, known = on_device.lengths()
        starts, known = torch.cat((starts, starts[-1:].repeat(padding))), torch.cat((known, known[:1].repeat(padding)))
        tables = torch.cat((on_device.block_tables, on_device.block_tables[:1].repeat(padding, 1)))
        on_device = AttentionMetadata.on_device(starts, known, tables, longest_query=max(query_lens))
    chosen = AttentionTiles(block_m=block_m, tile=tile, num_warps=4, num_stages=2)
    have = attention.attend(
        query.to(DEVICE), cache.to(DEVICE), on_device, head**-0.5, window, softcap,
        None if sinks is None else sinks.to(DEVICE), chosen, processors, chunk, value_dim,
        None if slopes is None else slopes.to(DEVICE),
    )[: len(want)]  # fmt: skip
    return want, have.cpu()


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    sequences=SEQUENCES,
    group=st.sampled_from([1, 3, 4, 7]),
    kv_heads=st.sampled_from([1, 2]),
    head=st.sampled_from([16, 24]),
    limit=st.sampled_from([(0, 0), (0, 0), (1, 0), (5, 0), (17, 0), (0, 1), (0, 6), (0, 16), (0, 40)]),
    block_size=st.sampled_from([4, 16, 32]),
    tile=st.sampled_from([16, 32]),
    processors=st.sampled_from([1, 16]),
    cached=st.sampled_from([torch.float32, torch.float32, torch.int8, kv_quant.INT4, kv_quant.FLOAT8]),
    softcap=st.sampled_from([0.0, 0.0, 2.0]),
    with_sinks=st.booleans(),
    with_slopes=st.booleans(),
    padding=st.sampled_from([0, 0, 2]),
)
def test_ragged_batches_agree_with_the_reference(
    sequences: list[tuple[int, int]], group: int, kv_heads: int, limit: tuple[int, int], **how: Any
) -> None:
    window, chunk = limit
    heads = group * kv_heads
    want, have = both(sequences, heads=heads, kv_heads=kv_heads, block_m=16, window=window, chunk=chunk, **how)
    torch.testing.assert_close(have, want, atol=4e-6, rtol=1e-5)


@settings(max_examples=6, deadline=None, derandomize=True)
@given(
    sequences=SEQUENCES,
    heads=st.sampled_from([3, 16, 20]),
    row=st.sampled_from([(24, 16), (40, 32), (24, 24)]),
    processors=st.sampled_from([1, 16]),
    cached=st.sampled_from([torch.float32, torch.int8, kv_quant.FLOAT8]),
    padding=st.sampled_from([0, 2]),
)
def test_latent_rows_are_keys_whose_first_numbers_are_values(
    sequences: list[tuple[int, int]], heads: int, row: tuple[int, int], **how: Any
) -> None:
    sizes = {"kv_heads": 1, "window": 0, "block_size": 8, "block_m": 16, "tile": 16}
    want, have = both(sequences, heads=heads, head=row[0], value_dim=row[1], **sizes, **how)
    torch.testing.assert_close(have, want, atol=4e-6, rtol=1e-5)


@pytest.mark.parametrize("processors", [1, 16])
@pytest.mark.parametrize("limit", [(33, 0), (50, 0), (64, 0), (200, 0), (0, 33), (0, 96), (0, 64)])
def test_tiles_inside_a_window_need_no_mask(limit: tuple[int, int], processors: int) -> None:
    window, chunk = limit
    sizes = {"heads": 4, "kv_heads": 1, "head": 16, "block_size": 4, "block_m": 16, "tile": 16}
    want, have = both([(12, 90), (1, 3), (7, 60)], window=window, chunk=chunk, processors=processors, **sizes)
    torch.testing.assert_close(have, want, atol=4e-6, rtol=1e-5)


@pytest.mark.parametrize("head", [64, 80, 96, 128, 192, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_head_sizes_agree_with_the_reference(head: int, dtype: torch.dtype) -> None:
    sizes = {"heads": 4, "kv_heads": 1, "window": 0, "block_size": 16, "block_m": 16, "tile": 32, "processors": 1}
    want, have = both([(1, 70), (9, 30)], head=head, dtype=dtype, **sizes)
    tolerance = 2e-6 if dtype == torch.float32 else 2e-3
    torch.testing.assert_close(have, want, atol=tolerance, rtol=tolerance * 5)


@pytest.mark.parametrize("head", [64, 80, 256])
@pytest.mark.parametrize("cached", [torch.int8, kv_quant.INT4, kv_quant.FLOAT8])
@pytest.mark.parametrize("softcap", [0.0, 50.0])
def test_caches_of_fewer_bits_agree_in_float16(head: int, cached: torch.dtype, softcap: float) -> None:
    sizes = {"heads": 4, "kv_heads": 2, "window": 33, "block_size": 16, "block_m": 16, "tile": 32, "processors": 16}
    how = {
        "dtype": torch.float16,
        "cached": cached,
        "softcap": softcap,
        "with_sinks": True,
        "padding": 1,
        "with_slopes": True,
    }
    want, have = both([(4, 70), (4, 0)], head=head, **sizes, **how)
    torch.testing.assert_close(have, want, atol=2e-3, rtol=1e-2)


def planned(
    starts: list[int], lens: list[int], pieces: int, *, window: int = 0, wanted: int = 12, one_block: bool = True
) -> tuple[list[tuple[int, int]], list[int], list[int]]:
    """Pieces as (block, split), splits of each sequence, and the first piece of each."""
    begin, known = (torch.tensor(values, dtype=torch.int32, device=DEVICE) for values in (starts, lens))
    sizes = {"KV_HEADS": 2, "BLOCK_Q": 4, "TILE": 16, "ONE_BLOCK": one_block}
    plan = attention._plan(begin, known, pieces, window, wanted, sizes).tolist()
    listed, rest = plan[:pieces], plan[pieces:]
    used = [(piece // 64, piece % 64) for piece in listed if piece >= 0]
    assert listed[len(used) :] == [-1] * (pieces - len(used))
    return used, rest[: len(lens)], rest[len(lens) :]


def test_long_sequence_beside_short_ones_is_split_and_they_are_not() -> None:
    # 19 + 1 + 3 tiles for two heads are 46; 12 programs take four tiles each.
    pieces = [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0), (2, 0)]
    assert planned([0, 1, 2, 3], [300, 2, 40], 9) == (pieces, [5, 1, 1], [0, 5, 6])
    # A window of 33 leaves at most 3 tiles of each.
    assert planned([0, 1, 2, 3], [300, 2, 40], 9, window=33, wanted=2)[1] == [1, 1, 1]
    # Two tiles are the least.
    assert planned([0, 1, 2, 3], [300, 2, 40], 509, wanted=1000)[1] == [10, 1, 2]
    # The second has no tokens, whatever is said of its length.
    assert planned([0, 1, 1, 2], [300, 1 << 20, 40], 9)[0] == [*((0, i) for i in range(5)), (2, 0)]


def test_each_block_of_a_chunk_is_split() -> None:
    # Nine tokens are three blocks, which begin at the first block that may be theirs; 6 of 60 tiles for 8 programs.
    found = planned([0, 1, 10], [20, 300], 20, wanted=8, one_block=False)
    assert found == ([(0, 0), *((block, i) for block in (1, 2, 3) for i in (0, 1))], [1, 2], [0, 1])


def test_a_plan_of_more_sequences_than_a_program_has_lanes() -> None:
    lens = [16] * 300
    lens[270] = 16 * 40
    used, splits, first = planned(list(range(301)), lens, 310, wanted=20)
    # 339 tiles for two heads are 678; a piece has 34 of them.
    assert splits == [2 if i == 270 else 1 for i in range(300)]
    assert used == [*((i, 0) for i in range(271)), (270, 1), *((i, 0) for i in range(271, 300))]
    assert first == [i if i < 271 else i + 1 for i in range(300)]


@given(
    sequences=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 500)), min_size=1, max_size=4),
    wanted=st.integers(1, 40),
)
@settings(max_examples=15, deadline=None, derandomize=True)
def test_a_plan_is_never_longer_than_there_is_room(sequences: list[tuple[int, int]], wanted: int) -> None:
    starts = [0]
    for queries, _ in sequences:
        starts.append(starts[-1] + queries)
    blocks = starts[-1] // 4 + len(sequences)
    lens = [queries + before for queries, before in sequences]
    used, splits, _ = planned(starts, lens, blocks + -(-wanted // 2), wanted=wanted, one_block=False)
    assert (
        len(used)
        == len(set(used))
        == sum(n * -(-queries // 4) for n, (queries, _) in zip(splits, sequences, strict=True))
    )


@pytest.mark.parametrize(
    ("blocks", "tiles", "rows_bytes", "few_queries", "want"),
    [
        (1, 1000, 8192, True, 1 + 50),  # one sequence: three for each of 132 processors
        (64, 1000, 8192, True, 64 + 50),
        (527, 1000, 8192, True, 527 + 50),
        (528, 1000, 8192, True, 0),  # the card is full without
        (49, 1000, 65536, False, 49 + 50),
        (50, 1000, 65536, False, 0),  # and of prompts sooner
        (1, 4, 8192, True, 51),
        (1, 3, 8192, True, 0),  # nothing to split
        (49, 1000, 1 << 20, False, 0),  # scratch is bounded
    ],
)
def test_room_for_pieces(blocks: int, tiles: int, rows_bytes: int, few_queries: bool, want: int) -> None:
    assert attention.most_pieces(blocks, 8, tiles, rows_bytes, 132, few_queries=few_queries) == want
