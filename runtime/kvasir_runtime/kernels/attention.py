"""Attention of a step's queries over the paged cache: prefill, a chunk of one, and decode, mixed in one batch.

    for s, t in sequences, queries of s:              # t at position p = kv_len[s] - query_len[s] + index of t in s
        for h in heads:
            first = max(0, p - window + 1) if window else p // chunk * chunk if chunk else 0
            seen = range(first, p + 1)
            score[j] = scale * dot(query[t, h], key[s, j, h / group])
            if softcap: score[j] = softcap * tanh(score[j] / softcap)
            if slopes: score[j] += slopes[h] * (j - p)
            weight[j] = exp(score[j]) / (sum(exp(score[j]) for j in seen) + (exp(sinks[h]) if sinks else 0))
            out[t, h] = sum(weight[j] * value[s, j, h / group] for j in seen)

query:   (tokens, heads, head_dim), contiguous in head_dim, sequences one after another as in attn_metadata
cache:   (2, num_blocks, block_size, kv_heads, head_dim), a layer of kernels.kv_cache; position j of s lies in block
         block_tables[s, j / block_size]; query's dtype, or a type of fewer bits with rows as kernels.kv_quant has them
softcap: no score is beyond it on either side; 0 leaves them. sinks: (heads,) float32 or None: a score of each head that
         no value belongs to, where a head may put what it gives to no position; neither scaled nor capped
value_dim: of a cache of latent rows, both of whose halves are the same memory: a value is the first value_dim numbers
         of its key, and out has as many for each head; 0 where values are the other half
out:     (tokens, heads * head_dim), contiguous, query's dtype; group = heads / kv_heads; window 0 sees everything; with
         chunk a query sees what is between the last multiple of it and itself
Blocks before what the first query of a sequence sees are not read, whatever their table holds.
Softmax and sums in float32. Error: 2e-6 in float32 (1e-5 with a cap), 2 units of the last place in 16-bit types.
Sources: Kwon et al. 2023 (paging); Dao et al. 2022 (online softmax, inside torch's operator); Gemma Team 2024 (cap);
Xiao et al. 2023, with learned scores as in OpenAI's gpt-oss 2025 (sinks); Press et al. 2022 (slopes).
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from kvasir_runtime.kernels import kv_quant
from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.kernels.linear import product


class Attention(Protocol):
    """What a table of operations has for it."""

    def __call__(
        self,
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
    ) -> Tensor: ...


def reference(
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
    """The formula, one sequence at a time, in float32."""
    block_size, kv_heads = cache.shape[2], cache.shape[3]
    group = query.shape[1] // kv_heads
    out, start = [], 0
    for index, num_queries in enumerate(attn_metadata.query_lens):
        part, end = query[start : start + num_queries], attn_metadata.kv_lens[index]
        start += num_queries
        if not num_queries:
            continue
        column = first_seen(end - num_queries, window, chunk) // block_size
        first = column * block_size
        wide = kv_quant.numbers(_gathered(cache, attn_metadata, index, column, -(-end // block_size))[:, : end - first])
        keys, values = wide.repeat_interleave(group, dim=2)
        values = values[..., :value_dim] if value_dim else values
        scores = torch.einsum("qhd,khd->hqk", part.float(), keys) * scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        if slopes is not None:
            scores = scores + slopes.view(-1, 1, 1) * _distances(num_queries, end, first, slopes)
        scores = scores.masked_fill(~attn_metadata.mask(index, window, first, chunk), float("-inf"))
        weights = _softmax(scores, None if sinks is None else sinks.view(-1, 1, 1))
        out.append(torch.einsum("hqk,khd->qhd", weights, values).flatten(1).to(query.dtype))
    return _joined(out, query, value_dim or query.shape[2])


def cpu(
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
    """As reference, with ways of its own for long chunks and single tokens. A cache in fewer bits: the reference."""
    if cache.dtype != query.dtype:
        return reference(query, cache, attn_metadata, scale, window, softcap, sinks, chunk, value_dim, slopes)
    if value_dim:
        of_rows = cpu(query, cache, attn_metadata, scale, window, softcap, sinks, chunk, 0, slopes)
        return first_of_heads(of_rows, query, value_dim)
    out, start = [], 0
    for index, num_queries in enumerate(attn_metadata.query_lens):
        part = query[start : start + num_queries]
        start += num_queries
        if not num_queries:
            continue
        end = attn_metadata.kv_lens[index]
        first = first_seen(end - num_queries, window, chunk)
        keys, values = _cached(cache, attn_metadata, index, first)
        seen = _Seen(window, chunk, first)
        if softcap or sinks is not None or slopes is not None:
            out.append(_tiled(part, keys, values, scale, seen, _Scores(softcap, sinks, slopes)))
        elif num_queries == 1:
            out.append(_decode(part, keys, values, scale))
        elif num_queries < 16 or num_queries * end < _MANY_SCORES:
            mask = attn_metadata.mask(index, window, first, chunk)
            whole = part.transpose(0, 1).unsqueeze(0), keys.unsqueeze(0), values.unsqueeze(0)
            few = F.scaled_dot_product_attention(*whole, attn_mask=mask, scale=scale, enable_gqa=True)
            out.append(few[0].transpose(0, 1).flatten(1))
        else:
            out.append(_tiled(part, keys, values, scale, seen, _Scores()))
    return out[0] if len(out) == 1 and out[0].shape[0] == query.shape[0] else _joined(out, query, query.shape[2])


def first_of_heads(out: Tensor, query: Tensor, value_dim: int) -> Tensor:
    """(tokens, heads * head_dim) to (tokens, heads * value_dim): the first numbers of each head."""
    return out.view(query.shape)[:, :, :value_dim].flatten(1)


def first_seen(position: int, window: int, chunk: int) -> int:
    """First position that the query at a position sees."""
    first = max(0, position - window + 1) if window else 0
    return max(first, position // chunk * chunk) if chunk else first


class _Seen(NamedTuple):
    """What queries see of the keys of one sequence, which begin at its position first."""

    window: int
    chunk: int
    first: int


class _Scores(NamedTuple):
    """What is done to scores, as the module has it."""

    softcap: float = 0.0
    sinks: Tensor | None = None
    slopes: Tensor | None = None


# Scores per head from which tiles of our own beat torch's flash operator: 32 queries of 512 positions, 128 of 128.
_MANY_SCORES = 1 << 14
# Scores of one tile and one key head, in elements: 1 MiB of float32 stays in the second-level cache.
_TILE_SCORES = 1 << 18


def _decode(part: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """One query of one sequence: (1, heads * head_dim).

    The heads of a group become the queries of their key head, which needs no mask and no repeated keys, and is five
    times as fast as the operator's own grouping.
    """
    folded = part.view(1, keys.shape[0], -1, keys.shape[2])
    return F.scaled_dot_product_attention(folded, keys.unsqueeze(0), values.unsqueeze(0), scale=scale).view(1, -1)


def _tiled(part: Tensor, keys: Tensor, values: Tensor, scale: float, seen: _Seen, changed: _Scores) -> Tensor:
    """Many queries of one sequence, the last of its positions: (query_len, heads * head_dim).

    Tile by tile: scores in float32, softmax, and the sum of values in the cache's dtype. 1.6 to 1.9 times as fast as
    torch's flash operator in bfloat16, whose products do not use the CPU's instructions for them. Few queries come here
    too where scores are changed, which the operator does not know.
    """
    softcap, sinks, slopes = changed
    (num_queries, heads, head_dim), (kv_heads, end, _) = part.shape, keys.shape
    group = heads // kv_heads
    keys = keys.float().contiguous()
    values = values.contiguous()
    queries = (part.float() * scale).view(num_queries, kv_heads, group, head_dim)
    out = part.new_empty((num_queries, kv_heads, group, head_dim))
    tile = min(max(_TILE_SCORES // (group * end), 16), 128, num_queries)
    for start in range(0, num_queries, tile):
        stop = min(start + tile, num_queries)
        last = end - num_queries + stop
        first = max(0, first_seen(seen.first + last - (stop - start), seen.window, seen.chunk) - seen.first)
        unseen = _unseen(stop - start, last - first, seen._replace(first=seen.first + first), part.device)
        distances = unseen if slopes is None else _distances(stop - start, last, first, slopes)[:, None]
        for head in range(kv_heads):
            scores = product(queries[start:stop, head].reshape(-1, head_dim), keys[head, first:last])
            if softcap:
                scores.div_(softcap).tanh_().mul_(softcap)
            scores = scores.view(stop - start, group, -1)
            if slopes is not None:
                scores.addcmul_(slopes.view(kv_heads, group, 1)[head], distances)
            scores[..., -unseen.shape[-1] :].masked_fill_(unseen, float("-inf"))
            sink = None if sinks is None else sinks.view(kv_heads, group, 1)[head]
            weights = _softmax(scores, sink).flatten(0, 1).to(values.dtype)
            out[start:stop, head] = (weights @ values[head, first:last]).view(stop - start, group, head_dim)
    return out.view(num_queries, heads * head_dim)


def _distances(num_queries: int, end: int, first: int, like: Tensor) -> Tensor:
    """Of positions first.. to end from the last queries, not above 0 where they are seen: (queries, keys) float32."""
    keys = torch.arange(first, end, device=like.device)
    return (keys - keys[-num_queries:, None]).float()


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Of the last axis, with a score more that no weight is given back for. sinks: broadcastable to that of one key."""
    if sinks is None:
        return scores.softmax(dim=-1)
    column = sinks.to(scores).expand(*scores.shape[:-1], 1)
    return torch.cat((scores, column), dim=-1).softmax(dim=-1)[..., :-1]


def _joined(out: list[Tensor], query: Tensor, value_dim: int) -> Tensor:
    """The results of all sequences, and zeros for tokens of padding behind them."""
    padding = query.new_zeros((query.shape[0] - sum(part.shape[0] for part in out), query.shape[1] * value_dim))
    return torch.cat((*out, padding))


def _unseen(num_queries: int, num_keys: int, seen: _Seen, device: torch.device) -> Tensor:
    """Which keys the last queries must not see: (queries, 1, keys) bool; of full attention only the last keys."""
    window, chunk, first = seen
    num_keys = num_keys if window or chunk else num_queries
    query = torch.arange(first + num_keys - num_queries, first + num_keys, device=device)[:, None, None]
    key = torch.arange(first, first + num_keys, device=device)
    unseen = key > query
    if window:
        unseen |= key <= query - window
    return unseen | (key < query // chunk * chunk) if chunk else unseen


def _cached(cache: Tensor, attn_metadata: AttentionMetadata, index: int, first: int) -> tuple[Tensor, Tensor]:
    """Keys and values of positions first.. of one sequence: each (kv_heads, kv_len - first, head_dim)."""
    _, _, block_size, kv_heads, head_dim = cache.shape
    end, skipped = attn_metadata.kv_lens[index], first // block_size
    both = _gathered(cache, attn_metadata, index, skipped, -(-end // block_size))
    # One view each: the six of slicing and transposing would cost as much as reading a short sequence.
    shape, stride = (kv_heads, end - first, head_dim), (head_dim, kv_heads * head_dim, 1)
    start = (first - skipped * block_size) * kv_heads * head_dim
    return both.as_strided(shape, stride, start), both.as_strided(shape, stride, start + both.stride(0))


def _gathered(cache: Tensor, attn_metadata: AttentionMetadata, index: int, first: int, stop: int) -> Tensor:
    """Blocks first.. to stop of a sequence, one after another: (2, positions, kv_heads, width)."""
    blocks = attn_metadata.block_tables[index, first:stop]
    return cache.index_select(1, blocks).contiguous().flatten(1, 2)


def cases(generator: torch.Generator) -> Iterator[tuple[object, ...]]:
    """Prefill, chunks, decode, several tokens each, all mixed; grouped heads; short and long windows and chunks;
    scattered and shared blocks; caps and sinks; caches of the same type and of fewer bits; lengths on the device,
    padding; latent rows, of which all or a part are values.
    """
    shapes = (
        ((1,), (1,)),
        ((5,), (5,)),
        ((3,), (21,)),
        ((1,), (30,)),
        ((4, 4, 4), (4, 19, 32)),
        ((4, 1, 7, 1), (4, 17, 20, 9)),
        ((150, 1, 130), (150, 9, 200)),
    )
    for query_lens, kv_lens in shapes:
        for heads, kv_heads, window, softcap in ((4, 4, 0, 0.0), (6, 2, 0, 1.5), (4, 1, 6, 0.0), (4, 2, 100, 2.0)):
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                query, cache, attn_metadata, scale = _case(generator, query_lens, kv_lens, heads, kv_heads, dtype)
                yield query, cache, attn_metadata, scale, window
                if window:
                    yield query, cache, attn_metadata, scale, 0, softcap, None, window
                if dtype == torch.float16:
                    continue
                yield query, kv_quant.stored(cache, torch.int8), attn_metadata, scale, window, softcap
                yield query, kv_quant.stored(cache, kv_quant.INT4), attn_metadata, scale, window, softcap
                if max(query_lens) < 100:
                    if kv_heads == 2:
                        slopes = torch.rand(heads, generator=generator) / 4
                        yield query, cache, attn_metadata, scale, window, softcap, None, 0, 0, slopes
                    sinks = torch.randn(heads, generator=generator)
                    padded = _padded(attn_metadata)
                    query = torch.cat((query, query[:2]))
                    yield query, cache, padded, scale, window, softcap, sinks
                    yield query, kv_quant.stored(cache, kv_quant.FLOAT8), padded, scale, window, 0.0, sinks
    for query_lens, kv_lens in (*shapes[3:6:2], shapes[6]):
        for heads, value_dim, dtype in ((5, 12, torch.float32), (40, 16, torch.float16), (4, 8, torch.bfloat16)):
            query, cache, attn_metadata, scale = _case(generator, query_lens, kv_lens, heads, 1, dtype)
            for content in (cache, kv_quant.stored(cache, torch.int8)):
                latents = content[:1].expand(2, -1, -1, -1, -1)
                yield query, latents, attn_metadata, scale, 0, 0.0, None, 0, value_dim


def _case(
    generator: torch.Generator,
    query_lens: tuple[int, ...],
    kv_lens: tuple[int, ...],
    heads: int,
    kv_heads: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, AttentionMetadata, float]:
    block_size, head_dim, columns = 8, 16, -(-max(kv_lens) // 8)
    num_blocks = 7 + columns * (len(kv_lens) + 1)
    cache = torch.randn(2, num_blocks, block_size, kv_heads, head_dim, generator=generator).to(dtype)
    tables = torch.randperm(num_blocks, generator=generator)[: len(kv_lens) * columns].view(len(kv_lens), columns)
    tables[0] = torch.arange(7, 7 + columns)  # sequences may share blocks when they only read
    query = torch.randn(sum(query_lens), heads, head_dim, generator=generator).to(dtype)
    return query, cache, AttentionMetadata(query_lens, kv_lens, tables), head_dim**-0.5


def _padded(attn_metadata: AttentionMetadata) -> AttentionMetadata:
    """The same on the device alone, and two sequences of padding behind them."""
    starts, kv_lens = attn_metadata.lengths()
    starts, kv_lens = torch.cat((starts, starts[-1:].repeat(2))), torch.cat((kv_lens, kv_lens[-1:].repeat(2)))
    tables = attn_metadata.block_tables
    tables = torch.cat((tables, tables[-2:], tables[-2:]))[: kv_lens.shape[0]]
    return AttentionMetadata.on_device(
        starts, kv_lens, tables.to(torch.int32), longest_query=attn_metadata.longest_query
    )
