"""Attention over latents equals keys and values that are written out, in every type and table of operations."""

import pytest
import torch

from kvasir_runtime.kernels import kv_cache, kv_quant
from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.kernels.cpu.ops import CPU, cpu_ops
from kvasir_runtime.kernels.reference import REFERENCE
from kvasir_runtime.layers import latent_attention
from kvasir_runtime.layers.layer_specs import LatentSpec

HEADS, SCALE, BLOCK = 4, 0.02, 8
QUERY_LENS, KV_LENS = (21, 1, 3), (21, 1, 3)
TABLES = torch.tensor([[5, 0, 3], [1, 0, 0], [4, 0, 0]])


def drawn(spec, dtype):
    generator = torch.Generator().manual_seed(0)
    first = spec.query_rank or spec.query_rows(HEADS)

    def normal(*shape):
        return (torch.randn(shape, generator=generator) / 3).to(dtype)

    tensors = {"latent_norm": 1 + normal(spec.rank), "latent_up": normal(spec.up_rows(HEADS), spec.rank)}
    if spec.query_rank:
        tensors |= {
            "query_norm": 1 + normal(spec.query_rank),
            "query_up.weight": normal(spec.query_rows(HEADS), spec.query_rank),
        }
    angle = torch.randn(sum(QUERY_LENS), 1, spec.rope_dim // 2, generator=generator)
    cos, sin = torch.cat((angle.cos(),) * 2, dim=2), torch.cat((-angle.sin(), angle.sin()), dim=2)
    return tensors, 3 * normal(sum(QUERY_LENS), first + spec.row), (cos.to(dtype), sin.to(dtype))


def written_out(spec, tensors, projected, angles):
    """Keys and values of every head, in float32."""
    tensors = {name: tensor.float() for name, tensor in tensors.items()}
    projected, (cos, sin) = projected.float(), (angle.float() for angle in angles)

    def normed(x, weight):
        return x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-6) * weight

    def turned(x):
        return x * cos + x.roll(spec.rope_dim // 2, 2) * sin

    first, latent, key = projected.split((projected.shape[1] - spec.row, spec.rank, spec.rope_dim), 1)
    if spec.query_rank:
        first = normed(first, tensors["query_norm"]) @ tensors["query_up.weight"].T
    fixed, turning = first.view(len(first), HEADS, -1).split((spec.key_dim, spec.rope_dim), 2)
    query = torch.cat((fixed, turned(turning)), 2)
    both = (normed(latent, tensors["latent_norm"]) @ tensors["latent_up"].T).view(len(first), HEADS, -1)
    keys, values = both.split((spec.key_dim, spec.value_dim), 2)
    keys = torch.cat((keys, turned(key[:, None]).expand(-1, HEADS, -1)), 2)
    out, start = [], 0
    for count in QUERY_LENS:
        part = slice(start, start + count)
        scores = torch.einsum("qhd,khd->hqk", query[part], keys[part]) * SCALE
        scores += torch.full((count, count), -torch.inf).triu(1)
        out.append(torch.einsum("hqk,khd->qhd", scores.softmax(2), values[part]).flatten(1))
        start += count
    return torch.cat(out)


@pytest.mark.parametrize("table", [REFERENCE, CPU, cpu_ops()], ids=lambda table: table.name)
@pytest.mark.parametrize("query_rank", [0, 20])
@pytest.mark.parametrize(
    ("dtype", "cached", "atol"),
    [
        (torch.float32, torch.float32, 1e-5),
        (torch.bfloat16, torch.bfloat16, 0.03),
        # Numbers up to 2.5 are off by 0.006 on average, and a value is the sum of 64 of them, each times a third.
        (torch.float32, torch.int8, 0.08),
        (torch.bfloat16, torch.int8, 0.1),
    ],
)
@pytest.mark.parametrize("rank", [32, 64])
def test_rows_that_all_heads_share_give_what_keys_and_values_do(table, query_rank, dtype, cached, atol, rank):
    spec = LatentSpec(rank=rank, rope_dim=32, key_dim=12, value_dim=10, query_rank=query_rank)
    tensors, projected, angles = drawn(spec, dtype)
    want = written_out(spec, tensors, projected, angles)
    layout = kv_cache.latents(block_size=BLOCK, row=kv_quant.width(spec.row, cached), dtype=cached)
    sizes = {"num_blocks": 6, "block_size": BLOCK, "dtype": cached}
    cache = kv_cache.allocate(groups=[(0, 1)], layouts=[layout] * 2, **sizes)
    cache.blocks.zero_()
    metadata = AttentionMetadata(QUERY_LENS, KV_LENS, TABLES)
    slots = []
    for row, count in zip(TABLES.tolist(), KV_LENS, strict=True):
        slots += [row[position // BLOCK] * BLOCK + position % BLOCK for position in range(count)]
    layer = latent_attention.build("", spec, HEADS, SCALE, table, tensors)
    out = layer(projected, angles, cache.layers[1], torch.tensor(slots), metadata)
    assert not tensors
    torch.testing.assert_close(out.float(), want, atol=atol, rtol=0)
    assert not cache.blocks[:, : layout.num_bytes].any()
    assert cache.blocks.shape[1] == 2 * BLOCK * kv_quant.width(spec.row, cached) * cached.itemsize
