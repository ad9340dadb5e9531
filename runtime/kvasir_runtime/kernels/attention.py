"""Attention of a step's queries over the paged cache: prefill, a chunk of one, and decode, mixed in one batch.

    for s, t in sequences, queries of s:              # t at position p = kv_len[s] - query_len[s] + index of t in s
        for h in heads:
            seen = [j for j in range(p + 1) if window == 0 or j > p - window]
            score[j] = scale * dot(query[t, h], key[s, j, h / group])
            out[t, h] = sum(softmax(score)[j] * value[s, j, h / group] for j in seen)

query: (tokens, heads, head_dim), contiguous in head_dim, sequences one after another as in spans
cache: (2, num_blocks, block_size, kv_heads, head_dim); position j of s lies in block block_tables[s, j / block_size]
out:   (tokens, heads * head_dim), contiguous, query's dtype; group = heads / kv_heads; window 0 sees everything
Softmax and sums in float32. Error: 2e-6 in float32, 2 units of the last place in 16-bit types.
Source: Kwon et al. 2023 (paging); Dao et al. 2022 (online softmax, inside torch's operator).
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from kvasir_runtime.kernels.spans import Spans


def reference(query: Tensor, cache: Tensor, spans: Spans, scale: float, window: int) -> Tensor:
    """The formula, one sequence at a time, in float32."""
    block_size, kv_heads = cache.shape[2], cache.shape[3]
    group = query.shape[1] // kv_heads
    out = []
    for index, part in enumerate(query.split(list(spans.query_lens))):
        end = spans.kv_lens[index]
        blocks = spans.block_tables[index, : -(-end // block_size)]
        keys, values = cache.index_select(1, blocks).flatten(1, 2)[:, :end].float().repeat_interleave(group, dim=2)
        scores = torch.einsum("qhd,khd->hqk", part.float(), keys) * scale
        scores = scores.masked_fill(~spans.mask(index, window, 0), float("-inf"))
        out.append(torch.einsum("hqk,khd->qhd", scores.softmax(dim=-1), values))
    return torch.cat(out).flatten(1).to(query.dtype)


def cpu(query: Tensor, cache: Tensor, spans: Spans, scale: float, window: int) -> Tensor:
    """As reference, through torch's flash operator, reading consecutive blocks in place.

    A single query is folded: the heads of a group become the queries of their key head, which needs no mask and no
    repeated keys, and is five times as fast as the operator's own grouping.
    """
    tokens, heads, head_dim = query.shape
    kv_heads = cache.shape[3]
    out = query.new_empty((tokens, heads, head_dim))
    start = 0
    for index, num_queries in enumerate(spans.query_lens):
        part, result = query[start : start + num_queries], out[start : start + num_queries]
        start += num_queries
        if num_queries == 1:
            end = spans.kv_lens[index]
            keys, values = _cached(cache, spans, index, max(0, end - window) if window else 0)
            folded = part.view(1, kv_heads, heads // kv_heads, head_dim)
            result.view_as(folded).copy_(F.scaled_dot_product_attention(folded, keys, values, scale=scale))
        else:
            result.copy_(_prefill(part, cache, spans, index, scale, window))
    return out.view(tokens, heads * head_dim)


def _prefill(part: Tensor, cache: Tensor, spans: Spans, index: int, scale: float, window: int) -> Tensor:
    """Several queries of one sequence: (query_len, heads, head_dim)."""
    num_queries, end = part.shape[0], spans.kv_lens[index]
    first = max(0, end - num_queries - window + 1) if window else 0
    keys, values = _cached(cache, spans, index, first)
    whole = num_queries == end and (not window or window >= end)
    out = F.scaled_dot_product_attention(
        part.transpose(0, 1).unsqueeze(0),
        keys,
        values,
        attn_mask=None if whole else spans.mask(index, window, first),
        is_causal=whole,
        scale=scale,
        enable_gqa=True,
    )
    return out.squeeze(0).transpose(0, 1)


def _cached(cache: Tensor, spans: Spans, index: int, first: int) -> tuple[Tensor, Tensor]:
    """Keys and values of positions first.. of one sequence: each (1, kv_heads, kv_len - first, head_dim)."""
    block_size, end = cache.shape[2], spans.kv_lens[index]
    first_block = spans.first_blocks[index]
    if first_block >= 0:
        offset = first_block * block_size
        both = cache.flatten(1, 2)[:, offset + first : offset + end]
    else:
        skipped = first // block_size
        blocks = spans.block_tables[index, skipped : -(-end // block_size)]
        skipped *= block_size
        both = cache.index_select(1, blocks).flatten(1, 2)[:, first - skipped : end - skipped]
    keys, values = both.transpose(1, 2).unsqueeze(1).unbind(0)
    return keys, values


def cases(generator: torch.Generator) -> Iterator[tuple[object, ...]]:
    """Prefill, chunks, decode, all three mixed; grouped heads; short and long windows; scattered and consecutive."""
    shapes = (((1,), (1,)), ((5,), (5,)), ((3,), (21,)), ((1,), (30,)), ((4, 1, 7, 1), (4, 17, 20, 9)))
    for query_lens, kv_lens in shapes:
        for heads, kv_heads, window in ((4, 4, 0), (6, 2, 0), (4, 1, 6), (4, 2, 100)):
            for dtype in (torch.float32, torch.bfloat16):
                yield _case(generator, query_lens, kv_lens, heads, kv_heads, window, dtype)


def _case(
    generator: torch.Generator,
    query_lens: tuple[int, ...],
    kv_lens: tuple[int, ...],
    heads: int,
    kv_heads: int,
    window: int,
    dtype: torch.dtype,
) -> tuple[object, ...]:
    block_size, head_dim, num_blocks = 8, 16, 32
    cache = torch.randn(2, num_blocks, block_size, kv_heads, head_dim, generator=generator).to(dtype)
    tables = torch.randperm(num_blocks, generator=generator)[: len(kv_lens) * 4].view(len(kv_lens), 4)
    first_blocks = [-1] * len(kv_lens)
    tables[0], first_blocks[0] = torch.arange(7, 11), 7  # consecutive; sequences may share blocks when they only read
    query = torch.randn(sum(query_lens), heads, head_dim, generator=generator).to(dtype)
    return query, cache, Spans(query_lens, kv_lens, tables, first_blocks), head_dim**-0.5, window
