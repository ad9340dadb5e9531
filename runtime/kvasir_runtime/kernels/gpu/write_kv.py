"""Keys and values into the paged cache where it is not part of `split_qkv`: one program a token."""

import triton
import triton.language as tl
from torch import Tensor

from kvasir_runtime.kernels.gpu.options import options


def launch(key: Tensor, value: Tensor, cache: Tensor, slots: Tensor) -> None:
    """kernels.write_kv."""
    tokens, kv_heads, head = key.shape
    padded = triton.next_power_of_2(kv_heads * head)
    _write_kv[(tokens,)](
        key, value, cache, slots, *key.stride()[:2], *value.stride()[:2], cache.stride(0),
        WIDTH=kv_heads * head, HEAD=head, PADDED=padded, **options(padded),
    )  # fmt: skip


@triton.jit
def _write_kv(
    key, value, cache, slots, key_stride, key_head_stride, value_stride, value_head_stride, values,
    WIDTH: tl.constexpr, HEAD: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    lane = tl.arange(0, PADDED)
    mask = lane < WIDTH
    head, dim = lane // HEAD, lane % HEAD
    keys = tl.load(key + token * key_stride + head * key_head_stride + dim, mask=mask)
    content = tl.load(value + token * value_stride + head * value_head_stride + dim, mask=mask)
    tl.store(cache + slot * WIDTH + lane, keys, mask=mask)
    tl.store(cache + values + slot * WIDTH + lane, content, mask=mask)
