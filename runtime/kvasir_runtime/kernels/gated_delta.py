"""A layer's state in place of keys and values: a short causal convolution, then the gated delta rule, or Mamba-2's.

    for t, p in tokens of s, their positions:                            # in order
        mixed = silu(bias + sum(conv[:, i] * x[p - width + 1 + i] for i in range(width)))    # 0 before the first
        q, k, v = parts of mixed
        if heads.delta: q, k = q / norm(q) / sqrt(key_dim), k / norm(k)              # norm: sqrt(1e-6 + sum of squares)
        for h in value heads, of key head h / group:
            S[h] = exp(log_decay[t, h]) * S[h]
            S[h] = S[h] + outer(k, beta[t, h] * (v[h] - k @ S[h] if heads.delta else v[h]))
            out[t, h] = q @ S[h] + skip[h] * v[h]

x:         (tokens, 2 * key_width + value_width), queries, keys and values of all heads, sequences as in attn_metadata
conv:      (channels, 1, width), x's dtype; log_decay: (tokens, value_heads) float32, at most 0; beta: the same, not
           below 0, at most 1 with the delta; all contiguous, x within a token
bias:      (channels,), x's dtype; skip: (value_heads,) float32; None for 0
states:    (num_blocks, numbers) float32, a layer of kernels.kv_cache: the last width - 1 inputs (width - 1,
           channels), then S (value_heads, key_dim, value_dim)
block_size, attn_metadata: the state before a chunk that begins at position p lies in block block_tables[s, (p - 1) /
           block_size] and is not read for p = 0; behind a chunk that ends before position e it is written to block
           block_tables[s, (e - 1) / block_size], which may be the same one. Other blocks are not touched.
heads:     key heads, value heads and key_dim, and which rule
out:       (tokens, value_heads, value_dim), x's dtype; rows of padding may be anything. Computed in float32; mixed may
           be rounded to x's dtype once it is normed
Positions are computed in order and once: a state cannot be taken back to one before.
Error: 1e-5 in float32. Sources: Yang et al. 2024 (gated delta networks), whose WY representation chunks have; Dao and
Gu 2024 (Mamba-2), where queries, keys and values are called C, B and x, betas are steps, and states lie transposed.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from kvasir_runtime.kernels.attention_metadata import AttentionMetadata

CHUNK = 64
"""Tokens whose rank-one changes of the state are merged into products of matrices."""


STEPPED = 32
"""Tokens that are computed one by one at most: those of a step with drafts, with the bits that they have alone."""


class StateHeads(NamedTuple):
    """key_dim: of one key head. delta: queries and keys are normed, values count less what their keys give before."""

    key_heads: int
    value_heads: int
    key_dim: int
    delta: bool = True


class GatedDelta(Protocol):
    """What a table of operations has for it."""

    def __call__(
        self,
        x: Tensor,
        conv: Tensor,
        log_decay: Tensor,
        beta: Tensor,
        states: Tensor,
        attn_metadata: AttentionMetadata,
        block_size: int,
        heads: StateHeads,
        bias: Tensor | None = None,
        skip: Tensor | None = None,
    ) -> Tensor: ...


def reference(
    x: Tensor,
    conv: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    states: Tensor,
    attn_metadata: AttentionMetadata,
    block_size: int,
    heads: StateHeads,
    bias: Tensor | None = None,
    skip: Tensor | None = None,
) -> Tensor:
    """The formula, token by token."""
    weights = _Weights(conv, bias, skip)
    return _by_sequence(x, weights, log_decay, beta, states, attn_metadata, block_size, heads, in_chunks=False)


def cpu(
    x: Tensor,
    conv: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    states: Tensor,
    attn_metadata: AttentionMetadata,
    block_size: int,
    heads: StateHeads,
    bias: Tensor | None = None,
    skip: Tensor | None = None,
) -> Tensor:
    """As reference, long chunks by products of matrices."""
    weights = _Weights(conv, bias, skip)
    return _by_sequence(x, weights, log_decay, beta, states, attn_metadata, block_size, heads, in_chunks=True)


class _Weights(NamedTuple):
    conv: Tensor
    bias: Tensor | None
    skip: Tensor | None


class _Tokens(NamedTuple):
    """Of n sequences with T tokens each, float32. query, key: (n, T, value_heads, key_dim), with the delta normed, the
    former scaled; value: (n, T, value_heads, value_dim); log_decay, beta: (n, T, value_heads).
    """

    query: Tensor
    key: Tensor
    value: Tensor
    log_decay: Tensor
    beta: Tensor


def _by_sequence(
    x: Tensor,
    weights: _Weights,
    log_decay: Tensor,
    beta: Tensor,
    states: Tensor,
    attn_metadata: AttentionMetadata,
    block_size: int,
    heads: StateHeads,
    *,
    in_chunks: bool,
) -> Tensor:
    """Sequences of one token all at once, the others one by one."""
    lens = torch.tensor(attn_metadata.query_lens)
    ends = torch.tensor(attn_metadata.kv_lens)
    firsts, starts, tables = lens.cumsum(0) - lens, ends - lens, attn_metadata.block_tables.long()
    value_dim = (x.shape[1] - 2 * heads.key_heads * heads.key_dim) // heads.value_heads
    out = x.new_zeros((x.shape[0], heads.value_heads, value_dim))
    several = (lens > 1).nonzero().tolist()
    for those in ((lens == 1).nonzero()[:, 0], *(torch.tensor(index) for index in several)):
        if not those.shape[0]:
            continue
        begins, num_tokens = starts[those], int(lens[those[0]])
        device = those.to(tables.device)
        read, written = (
            tables[device, (position // block_size).to(tables.device)]
            for position in ((begins - 1).clamp(min=0), ends[those] - 1)
        )
        rows = states.index_select(0, read)
        rows[begins == 0] = 0
        at = (firsts[those, None] + torch.arange(num_tokens)).to(x.device)
        given, rows = _advanced(rows, x[at], weights, log_decay[at], beta[at], heads, in_chunks=in_chunks)
        out[at] = given.to(x.dtype)
        states.index_copy_(0, written, rows)
    return out


def _advanced(
    rows: Tensor,
    x: Tensor,
    weights: _Weights,
    log_decay: Tensor,
    beta: Tensor,
    heads: StateHeads,
    *,
    in_chunks: bool,
) -> tuple[Tensor, Tensor]:
    """What n sequences with T tokens each give, and their new states. rows: (n, numbers); x: (n, T, channels)."""
    conv, bias, skip = weights
    (channels, _, width), num_tokens = conv.shape, x.shape[1]
    held, matrix = rows.tensor_split([(width - 1) * channels], dim=1)
    wide = x.float()
    inputs = torch.cat((held.view(-1, width - 1, channels), wide), dim=1)
    mixed = torch.zeros_like(wide) if bias is None else bias.float().expand(wide.shape).clone()
    for place, weight in enumerate(conv[:, 0].float().unbind(1)):
        mixed.addcmul_(inputs[:, place : place + num_tokens], weight)
    key_width, group = heads.key_heads * heads.key_dim, heads.value_heads // heads.key_heads
    parts = F.silu(mixed).split((key_width, key_width, channels - 2 * key_width), dim=2)
    query, key, value = (part.unflatten(2, (number, -1)) for part, number in zip(parts, _numbers(heads), strict=True))
    if heads.delta:
        query, key = (part * torch.rsqrt(part.square().sum(dim=3, keepdim=True) + 1e-6) for part in (query, key))
        query = query * heads.key_dim**-0.5
    query, key = (part.repeat_interleave(group, dim=2) for part in (query, key))
    tokens = _Tokens(query, key, value, log_decay, beta)
    matrix = matrix.view(-1, heads.value_heads, heads.key_dim, value.shape[3])
    advance = _chunked if in_chunks and num_tokens > STEPPED else _stepped
    out, matrix = advance(tokens, matrix, delta=heads.delta)
    out = out if skip is None else out + skip[:, None] * value
    return out, torch.cat((inputs[:, 1 - width :].flatten(1), matrix.flatten(1)), dim=1)


def _numbers(heads: StateHeads) -> Sequence[int]:
    return heads.key_heads, heads.key_heads, heads.value_heads


def _stepped(tokens: _Tokens, state: Tensor, *, delta: bool) -> tuple[Tensor, Tensor]:
    """Outputs (n, T, value_heads, value_dim) and the state behind them. state: (n, value_heads, key_dim, value_dim)."""
    out = []
    for query, key, value, log_decay, beta in zip(*(part.unbind(1) for part in tokens), strict=True):
        state = state * log_decay.exp()[..., None, None]
        change = (value - (state * key[..., None]).sum(dim=2) if delta else value) * beta[..., None]
        state = state + key[..., None] * change[:, :, None]
        out.append((state * query[..., None]).sum(dim=2))
    return torch.stack(out, dim=1), state


def _chunked(tokens: _Tokens, state: Tensor, *, delta: bool) -> tuple[Tensor, Tensor]:
    """As `_stepped`. With G the sum of a chunk's log decays up to a token, its changes u of the state solve
    u[i] = beta[i] * (v[i] - exp(G[i]) * k[i] @ S - sum(exp(G[i] - G[j]) * (k[i] @ k[j]) * u[j] for j < i)),
    or are beta[i] * v[i] without the delta.
    """
    out = []
    for query, key, value, log_decay, beta in zip(
        *(part.transpose(1, 2).split(CHUNK, dim=2) for part in tokens), strict=True
    ):
        total = log_decay.cumsum(dim=2)
        between = (total[..., :, None] - total[..., None, :]).tril().exp().tril()
        grown, change = total.exp()[..., None], beta[..., None] * value
        if delta:
            system = (key @ key.transpose(2, 3) * between * beta[..., None]).tril(-1)
            wanted = change - beta[..., None] * grown * (key @ state)
            change = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
        out.append(grown * (query @ state) + (query @ key.transpose(2, 3) * between) @ change)
        left = (total[..., -1:] - total).exp()[..., None]
        state = grown[:, :, -1:] * state + (key * left).transpose(2, 3) @ change
    return torch.cat(out, dim=2).transpose(1, 2), state


def cases(generator: torch.Generator) -> Iterator[tuple[object, ...]]:
    """Sequences at their beginning and behind a state, of one token and of several chunks; a state that is advanced in
    its block and into the next; shared key heads; inputs in 16 bits; both rules."""
    heads, value_dim, width, block_size = StateHeads(2, 4, 8), 4, 4, 16
    channels = 2 * heads.key_heads * heads.key_dim + heads.value_heads * value_dim
    numbers = (width - 1) * channels + heads.value_heads * heads.key_dim * value_dim
    shapes = (((1,), (1,)), ((130,), (140,)), ((1, 1, 3, 20, 1), (16, 17, 3, 60, 8)))
    for query_lens, kv_lens in shapes:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            tokens, sequences, columns = sum(query_lens), len(query_lens), -(-max(kv_lens) // block_size)
            tables = torch.randperm(sequences * columns, generator=generator).view(sequences, columns)
            states = torch.randn(sequences * columns, numbers, generator=generator) / 4
            case = (
                torch.randn(tokens, channels, generator=generator).to(dtype),
                torch.randn(channels, 1, width, generator=generator).to(dtype),
                -torch.rand(tokens, heads.value_heads, generator=generator),
                torch.rand(tokens, heads.value_heads, generator=generator),
                states,
                AttentionMetadata(query_lens, kv_lens, tables),
                block_size,
            )
            yield *case, heads
            bias, skip = (torch.randn(size, generator=generator) / 4 for size in (channels, heads.value_heads))
            yield case[0] / 4, *case[1:], heads._replace(delta=False), bias.to(dtype), skip
