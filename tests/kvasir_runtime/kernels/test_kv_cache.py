"""A block of all layers is one piece of memory, and each layer a view of it."""

import pytest
import torch

from kvasir_runtime.kernels import copy_blocks, kv_cache, kv_quant


def made(dtype: torch.dtype) -> kv_cache.KvCache:
    layout = kv_cache.keys_and_values(block_size=4, kv_heads=2, row=kv_quant.width(8, dtype), dtype=dtype)
    return kv_cache.allocate(groups=[(0, 1, 2)], layouts=[layout] * 3, num_blocks=5, block_size=4, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, kv_quant.INT4, kv_quant.FLOAT8])
@pytest.mark.parametrize("heads", [1, 2])
def test_a_step_of_padding_alone_has_no_rows(dtype: torch.dtype, heads: int) -> None:
    assert kv_quant.stored(torch.zeros(0, heads, 8), dtype).shape == (0, heads, kv_quant.width(8, dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, kv_quant.INT4, kv_quant.FLOAT8])
def test_layers_and_halves_lie_one_behind_the_other_in_each_block(dtype: torch.dtype) -> None:
    cache = made(dtype)
    half = 4 * 2 * kv_quant.width(8, dtype) * dtype.itemsize
    assert (cache.dtype, cache.blocks.is_contiguous()) == (dtype, True)
    assert tuple(cache.blocks.shape) == (5, 3 * 2 * half)
    cache.blocks.zero_()
    for place, layer in enumerate(cache.layers):
        assert tuple(layer.shape) == (2, 5, 4, 2, kv_quant.width(8, dtype))
        layer[1, 3].view(torch.uint8).fill_(place + 1)
    want = torch.zeros(5, 3, 2, half, dtype=torch.uint8)
    for place in range(3):
        want[3, place, 1] = place + 1
    assert torch.equal(cache.blocks, want.flatten(1))


def test_groups_share_all_blocks_and_small_ones_leave_the_end_empty() -> None:
    layout = kv_cache.keys_and_values(block_size=4, kv_heads=1, row=8, dtype=torch.float32)
    sizes = {"num_blocks": 2, "block_size": 4, "dtype": torch.float32}
    cache = kv_cache.allocate(groups=[(0, 2), (1,)], layouts=[layout] * 3, **sizes)
    assert (cache.groups, cache.num_groups) == ((0, 1, 0), 2)
    assert tuple(cache.blocks.shape) == (2, 2 * 2 * 4 * 8 * 4)
    offsets = [layer.data_ptr() - cache.blocks.data_ptr() for layer in cache.layers]
    assert offsets == [0, 0, 2 * 4 * 8 * 4]


def test_one_copy_moves_a_block_of_all_layers() -> None:
    cache = made(torch.bfloat16)
    cache.blocks.random_()
    before = [layer.clone() for layer in cache.layers]
    copy_blocks.reference(cache.blocks, torch.tensor([1]), torch.tensor([4]))
    for layer, old in zip(cache.layers, before, strict=True):
        assert torch.equal(layer[:, 4].view(torch.int16), old[:, 1].view(torch.int16))
        assert torch.equal(layer[:, :4].view(torch.int16), old[:, :4].view(torch.int16))
