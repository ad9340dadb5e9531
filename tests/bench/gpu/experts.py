"""How near layers of experts come to what one card can read and multiply: cells for the section of kernels.

Tokens are spread evenly, so that the weights that a call has to read are known: token t goes to experts t * top_k and
on.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch

from kvasir_runtime.kernels.expert_routing import Routing
from kvasir_runtime.kernels.ops import Ops

_CLEAR: Final = 8.0  # how far the logits of those that are chosen stand out


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """One layer. tokens: those of the steps to measure."""

    name: str
    experts: int
    top_k: int
    hidden: int
    inner: int
    tokens: tuple[int, ...] = (1, 8, 64, 4096)


MIXTURES: Final = (
    Mixture(name="Mixtral 8x7B", experts=8, top_k=2, hidden=4096, inner=14336),
    Mixture(name="Qwen3 30B-A3B", experts=128, top_k=8, hidden=2048, inner=768),
)
SMALL: Final = (Mixture(name="small", experts=6, top_k=2, hidden=32, inner=16, tokens=(1, 5)),)


def bounds(mixture: Mixture, tokens: int, element_bytes: int) -> tuple[int, int]:
    """Bytes that a call has to move, each weight of a chosen expert and x and out once, and its operations."""
    each = 3 * mixture.hidden * mixture.inner
    read = min(mixture.experts, tokens * mixture.top_k)
    moved = (read * each + mixture.experts * mixture.hidden + 2 * tokens * mixture.hidden) * element_bytes
    return moved, 2 * tokens * mixture.top_k * each


def call(mixture: Mixture, tokens: int, ops: Ops, device: torch.device, dtype: torch.dtype) -> Callable[[], object]:
    """The layer on new weights and tokens."""
    experts, hidden, inner = mixture.experts, mixture.hidden, mixture.inner
    router = torch.eye(experts, hidden, dtype=dtype, device=device)
    gate_up = torch.randn(experts * 2 * inner, hidden, dtype=dtype, device=device) / hidden**0.5
    down = torch.randn(experts * hidden, inner, dtype=dtype, device=device) / inner**0.5
    layer = ops.moe(router, gate_up, down, Routing(top_k=mixture.top_k, renormalised=True))
    x = torch.randn(tokens, hidden, dtype=dtype, device=device)
    chosen = torch.arange(tokens * mixture.top_k, device=device).view(tokens, -1) % experts
    x.scatter_add_(1, chosen, torch.full_like(chosen, _CLEAR, dtype=dtype))
    return lambda: layer(x)


def calls(
    mixtures: tuple[Mixture, ...], ops: Ops, device: torch.device, dtype: torch.dtype
) -> Iterator[tuple[str, Callable[[], Callable[[], object]], int, int]]:
    """Of each cell its name, what makes it, and its bounds."""
    for mixture in mixtures:
        for tokens in mixture.tokens:
            moved, flops = bounds(mixture, tokens, dtype.itemsize)
            yield f"experts, {mixture.name}, {tokens}", partial(call, mixture, tokens, ops, device, dtype), moved, flops
