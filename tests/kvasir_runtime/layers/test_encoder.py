"""Attention in both directions against its formula: whole, near, with a bias of distances; and the batch around it."""

import pytest
import torch
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.layers import encoder

HEADS, DIM = 3, 8


def formula(query, key, value, scale, span, bias, slopes):
    """Of one sequence, in float64: (tokens, heads * dim)."""
    q, k, v = (one.double().transpose(0, 1) for one in (query, key, value))
    scores = scale * q @ k.transpose(1, 2)
    at = torch.arange(len(query))
    far = (at[:, None] - at[None, :]).abs()
    if bias is not None:
        buckets = MPNetEncoder.relative_position_bucket(at[None, :] - at[:, None], num_buckets=len(bias))
        scores = scores + bias.double()[buckets].permute(2, 0, 1)
    if slopes:
        scores = scores - torch.tensor(slopes, dtype=torch.float64)[:, None, None] * far
    if span:
        scores = scores.masked_fill(far > span, -torch.inf)
    return (scores.softmax(dim=-1) @ v).transpose(0, 1).flatten(1)


@pytest.mark.parametrize("lengths", [(1,), (7, 7, 7), (300, 5, 129, 5), (128, 128)])
@pytest.mark.parametrize(
    ("span", "buckets", "slopes"),
    [(0, 0, ()), (4, 0, ()), (64, 0, ()), (0, 32, ()), (0, 0, (0.5, 0.125, 0.03125)), (64, 0, (0.5, 0.125, 0.03125))],
)
def test_each_token_sees_its_own_sequence_as_the_formula_says(lengths, span, buckets, slopes):
    generator = torch.Generator().manual_seed(sum(lengths))
    total = sum(lengths)
    query, key, value = torch.randn(3, total, HEADS, DIM, generator=generator)
    bias = torch.randn(buckets, HEADS, generator=generator) if buckets else None
    metadata = AttentionMetadata(lengths, lengths, torch.zeros(len(lengths), 1, dtype=torch.int64))
    out = encoder.attention(query, key, value, metadata, scale=0.3, span=span, relative_bias=bias, slopes=slopes)
    start = 0
    for length in lengths:
        own = slice(start, start + length)
        want = formula(query[own], key[own], value[own], 0.3, span, bias, slopes)
        torch.testing.assert_close(out[own].double(), want, atol=2e-5, rtol=1e-4)
        start += length
