"""Paged attention as one Triton kernel for prefill, chunks, decode and several query tokens a sequence, mixed at will.

All query heads of a key head, for BLOCK_Q tokens, are the rows of one product, so each tile of keys and values is read
once for the whole group and even decode has the 16 rows that tensor cores need. Where programs are few, long sequences
are split into pieces; how many each has follows from the lengths on the device, where a plan lists them. The grid is as
long as such a list can get, so it depends only on the numbers of tokens and sequences and may be captured in a
graph. What has several pieces is merged by a second kernel; they are kept in float32, each as a softmax of its own and
the logarithm (base 2) of its sum.
Sources: Kwon et al. 2023; Dao et al. 2023 (split); Ringlein et al. 2025, arXiv 2511.11581 (query blocks, fixed grid).
"""

import math
from functools import cache as memoised

import torch
import triton
from torch import Tensor

from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.kernels.gpu import attention_kernels, attention_tiles, kv_quant
from kvasir_runtime.kernels.gpu.attention_tiles import AttentionTiles
from kvasir_runtime.kernels.gpu.options import options
from kvasir_runtime.kernels.gpu.tuning_table import tuning_of

# A program should find at least this many tiles, or the merge costs more than the split gains.
_MIN_TILES = 2
_MAX_SCRATCH_BYTES = 128 << 20
# Pieces per multiprocessor that work is cut into, and programs without cuts from which on the card is full enough:
# of prompts, and of sequences with a few tokens, one of which may be much longer than the others.
_WANTED, _FULL, _FULL_OF_TOKENS = 3, 3, 32
# Heads of a latent row in one program: sums of 512 numbers each fill its registers.
_MOST_HEADS = 16
_LOG2E = math.log2(math.e)


def launch(
    query: Tensor,
    cache: Tensor,
    attn_metadata: AttentionMetadata,
    scale: float,
    window: int,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    chunk: int = 0,
    value_dim: int = 0,
    slopes: Tensor | None = None,
) -> Tensor:
    """kernels.attention with the shipped launch parameters."""
    rows = attn_metadata.longest_query * _group(query.shape[1], cache.shape[3], value_dim)
    card = tuning_of(query.device)
    if value_dim:
        chosen = attention_tiles.of_latents(card.name, query.element_size(), rows)
    else:
        chosen = attention_tiles.choose(card.name, query.shape[2], query.element_size(), rows)
    processors = _processors(query.device)
    return attend(
        query, cache, attn_metadata, scale, window, softcap, sinks, chosen, processors, chunk, value_dim, slopes
    )


def attend(
    query: Tensor,
    cache: Tensor,
    attn_metadata: AttentionMetadata,
    scale: float,
    window: int,
    softcap: float,
    sinks: Tensor | None,
    chosen: AttentionTiles,
    processors: int,
    chunk: int = 0,
    value_dim: int = 0,
    slopes: Tensor | None = None,
) -> Tensor:
    """kernels.attention with given launch parameters. processors: the programs that run at once decide on splitting.

    The host reads no length: the grid follows from the numbers of tokens, sequences and columns of the table.
    """
    (tokens, heads, width), (block_size, cached_heads) = query.shape, cache.shape[2:4]
    group, head = _group(heads, cached_heads, value_dim), value_dim or width
    kv_heads, sequences = heads // group, attn_metadata.num_sequences
    block_m = max(chosen.block_m, triton.next_power_of_2(group))
    block_q = block_m // group
    one_block = attn_metadata.longest_query <= block_q
    blocks = sequences if one_block else tokens // block_q + sequences
    longest = attn_metadata.block_tables.shape[1] * block_size
    pieces = most_pieces(
        blocks, kv_heads, -(-longest // chosen.tile), block_m * head * 4, processors, few_queries=one_block
    )
    starts, lens = attn_metadata.lengths()
    sizes = {"KV_HEADS": kv_heads, "BLOCK_Q": block_q}
    plan = starts
    if pieces:
        # The mean work of a program, not its longest, decides: keyed by all that enters.
        how = {**sizes, "TILE": chosen.tile, "ONE_BLOCK": one_block}
        key = ("plan", reach := window or chunk, processors, *how.values())
        plan = attn_metadata.once(key, lambda: _plan(starts, lens, pieces, reach, processors * _WANTED, how))
    query, out = _turned_alike(query, cache, heads * head)
    rows = pieces * kv_heads * block_m or 1
    parts = torch.empty((rows, head), dtype=torch.float32, device=query.device)
    logs = torch.empty((rows,), dtype=torch.float32, device=query.device)
    shape = {"GROUP": group, "HEAD": head, "PADDED": triton.next_power_of_2(head), "BLOCK_M": block_m}
    table_stride = attn_metadata.block_tables.stride(0)
    scales, of_heads = kv_quant.scales(cache), [logs if given is None else given for given in (sinks, slopes)]
    factor, cap = (scale * _LOG2E, 0.0) if not softcap else (scale / softcap * 2 * _LOG2E, softcap * _LOG2E)
    attention_kernels.attend[((pieces or blocks) * kv_heads,)](
        query, cache, scales, attn_metadata.block_tables, starts, lens, plan, *of_heads, out, parts, logs,
        factor, cap, window, chunk, sequences, pieces, *query.stride()[:2], *cache.stride()[:2], table_stride,
        TILE=chosen.tile, BLOCK_SIZE=block_size, WINDOWED=window > 0, CHUNKED=chunk > 0,
        ONE_BLOCK=one_block, SPLIT=pieces > 0, KIND=kv_quant.kind(cache), CAPPED=softcap > 0, SINKS=sinks is not None,
        SLOPED=slopes is not None, PRECISION=_precision(query.dtype), **_rows_of(cache, width - head, value_dim > 0),
        **sizes, **shape, num_warps=chosen.num_warps, num_stages=chosen.num_stages, enable_fp_fusion=True,
    )  # fmt: skip
    if pieces:
        attention_kernels.merge[(tokens, heads)](
            parts, logs, starts, plan, out, sequences, pieces,
            ONE_TOKEN=attn_metadata.longest_query == 1 and tokens == sequences, **sizes, **shape,
            **options(max(2048, 16 * shape["PADDED"])),
        )  # fmt: skip
    return _turned_back(out, query, cache)


def _turned_alike(query: Tensor, cache: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    """Queries as the rows of the cache are turned, and room for results: (tokens, columns)."""
    if kv_quant.kind(cache) != kv_quant.INT4.value:
        return query, query.new_empty((query.shape[0], columns))
    # Zeros for padding too, which is turned back.
    room = query.new_zeros((query.shape[0], columns), dtype=torch.float32)
    return kv_quant.turned(query, query.dtype), room


def _turned_back(out: Tensor, query: Tensor, cache: Tensor) -> Tensor:
    """Sums of the cache's rows as sums of values, in query's dtype."""
    if kv_quant.kind(cache) != kv_quant.INT4.value:
        return out
    return kv_quant.turned(out.view(query.shape), query.dtype).flatten(1)


def _group(heads: int, kv_heads: int, value_dim: int) -> int:
    """Query heads that share a program: those of a key head, or of one that all heads share as many as a tile has rows
    for.
    """
    group = heads // kv_heads
    return max(share for share in range(1, _MOST_HEADS + 1) if group % share == 0) if value_dim else group


def _rows_of(cache: Tensor, tail: int, latent: bool) -> dict[str, int]:
    """How a kernel reads the rows of a cache. tail: numbers of keys that belong to no value; see attention_kernels."""
    heads, row = cache.shape[3:]
    padded = max(16, triton.next_power_of_2(tail))  # which products take at least
    return {"ROW": 0 if latent else row, "SLOT": heads * row, "LATENT": latent, "TAIL": tail, "PADDED_TAIL": padded}


def most_pieces(
    blocks: int, kv_heads: int, tiles_of_longest: int, rows_bytes: int, processors: int, *, few_queries: bool
) -> int:
    """How long a plan may get; 0 where nothing is to be split.

    blocks: of queries, 1 for each sequence where it has few queries; tiles_of_longest: of the cache, as many as a
    sequence may have; rows_bytes: scratch of a block's rows.
    """
    full = processors * (_FULL_OF_TOKENS if few_queries else _FULL)
    pieces = blocks + -(-processors * _WANTED // kv_heads)
    too_much = pieces * kv_heads * rows_bytes > _MAX_SCRATCH_BYTES
    return 0 if too_much or blocks * kv_heads >= full or tiles_of_longest < 2 * _MIN_TILES else pieces


def _plan(starts: Tensor, lens: Tensor, pieces: int, reach: int, wanted: int, how: dict[str, int]) -> Tensor:
    """What is split into what, as attention_kernels has it: (pieces + 2 * sequences,) int32.

    reach: most positions that a query sees, 0 for all.
    """
    plan = lens.new_empty((pieces + 2 * lens.shape[0],))
    attention_kernels.make_plan[(1,)](
        starts, lens, plan, lens.shape[0], pieces, reach, wanted,
        **how, MIN_TILES=_MIN_TILES, BLOCK=256, **options(512),
    )  # fmt: skip
    return plan


def _precision(dtype: torch.dtype) -> str:
    """float32 is what was asked for, not the 10 bits that tensor cores make of it."""
    return "ieee" if dtype == torch.float32 else "tf32"


@memoised
def _processors(device: torch.device) -> int:
    """Multiprocessors of a card. The interpreter has none: a number that makes it split long sequences."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
