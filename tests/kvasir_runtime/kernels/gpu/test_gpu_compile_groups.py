"""Kernels of states and latent rows compile for every generation of cards at the shapes of Qwen3-Next and DeepSeek-V2.

They fit its shared memory and spill no registers.
"""

import pytest
import torch

pytest.importorskip("triton")


from fakes.hopper import CARDS, Hopper
from kvasir_runtime.kernels import kv_cache, kv_quant
from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.kernels.gated_delta import StateHeads
from kvasir_runtime.kernels.gpu import attention, attention_tiles
from kvasir_runtime.kernels.gpu.ops import TRITON

DECODE, PREFILL = ((1,) * 4, (9000,) * 4), ((700, 1), (700, 90))
BFLOAT16 = torch.bfloat16
QWEN3_NEXT, GRANITE4 = StateHeads(16, 32, 128), StateHeads(1, 48, 128, delta=False)
LATENTS = [("H200", DECODE, torch.int8), ("H200", DECODE, BFLOAT16), *((name, PREFILL, BFLOAT16) for name in CARDS)]


@pytest.mark.parametrize(
    ("card", "step", "heads", "value_dim"),
    [
        ("H200", DECODE, QWEN3_NEXT, 128),
        *((name, PREFILL, QWEN3_NEXT, 128) for name in CARDS),
        ("H200", DECODE, GRANITE4, 64),
        ("L40S", PREFILL, GRANITE4, 64),
    ],
    indirect=["card"],
)
def test_the_rules_of_states_compile(
    card: Hopper, step: tuple[tuple[int, ...], tuple[int, ...]], heads: StateHeads, value_dim: int
) -> None:
    channels = 2 * heads.key_heads * heads.key_dim + heads.value_heads * value_dim
    numbers = heads.value_heads * heads.key_dim * value_dim
    conv, states = torch.zeros(channels, 1, 4, dtype=BFLOAT16), torch.zeros(2, 3 * channels + numbers)
    metadata = AttentionMetadata(*step, torch.zeros(len(step[0]), 9, dtype=torch.int32))
    x, scalars = torch.zeros(sum(step[0]), channels, dtype=BFLOAT16), torch.zeros(sum(step[0]), heads.value_heads)
    added = () if heads.delta else (conv[:, 0, 0].contiguous(), scalars[0])
    TRITON.gated_delta(x, conv, scalars, scalars, states, metadata, 1072, heads, *added)
    kernels = {"convolve", "step"} | ({"prepare", "advance"} if step is PREFILL else set())
    assert kernels <= set(card.loaded)
    assert [card.spilled_bytes(name) for name in kernels] == [[0]] * len(kernels)


@pytest.mark.parametrize(("card", "step", "cached"), LATENTS, indirect=["card"])
def test_attention_over_latents_compiles(
    request: pytest.FixtureRequest, card: Hopper, step: tuple[tuple[int, ...], tuple[int, ...]], cached: torch.dtype
) -> None:
    layout = kv_cache.latents(block_size=16, row=kv_quant.width(576, cached), dtype=cached)
    sizes = {"num_blocks": 2, "block_size": 16}
    cache = kv_cache.allocate(groups=[(0, 1)], layouts=[layout] * 2, dtype=cached, **sizes).layers[1]
    metadata = AttentionMetadata(*step, torch.zeros(len(step[0]), 563, dtype=torch.int32))
    query = torch.zeros(sum(step[0]), 16, 576, dtype=BFLOAT16)
    name = request.node.callspec.params["card"]
    chosen = attention_tiles.of_latents(name, 2, max(step[0]) * 16)
    attention.attend(query, cache, metadata, 0.1, 0, 0.0, None, chosen, 132, 0, 512)
    assert card.spilled_bytes("attend") == [0]
    assert set(card.spilled_bytes("merge")) == {0}
