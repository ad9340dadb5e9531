"""Experts with copies on other ranks: together the ranks compute each choice once, as one process does."""

from dataclasses import replace

import pytest
import torch

from kvasir_runtime.kernels import moe
from kvasir_runtime.kernels.copied_experts import CopiedExperts
from kvasir_runtime.kernels.cpu.ops import CPU
from kvasir_runtime.kernels.expert_routing import Routing
from kvasir_runtime.kernels.moe import GroupedExperts

EXPERTS, HIDDEN, INNER = 6, 16, 8
HOMES = (0, 0, 1, 1, 2, 2)
COPIES = ((2,), (0, 5), (0,))
ROUTINGS = (
    Routing(top_k=2, renormalised=True),
    Routing(top_k=3, renormalised=False, sigmoid=True, scaled_inputs=True),
)


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("tokens", [0, 1, 23])
def test_the_sum_of_all_ranks_is_that_of_all_experts(routing: Routing, tokens: int) -> None:
    generator = torch.Generator().manual_seed(5)
    router = torch.randn(EXPERTS, HIDDEN, generator=generator)
    up = torch.randn(EXPERTS, 2 * INNER, HIDDEN, generator=generator) / 4
    down = torch.randn(EXPERTS, HIDDEN, INNER, generator=generator) / 4
    x = torch.randn(tokens, HIDDEN, generator=generator)
    want = moe.reference(router, up.flatten(0, 1), down.flatten(0, 1), routing)(x)

    def held(experts: tuple[int, ...], numbers: range) -> GroupedExperts:
        parts = (weight[list(experts)].flatten(0, 1) for weight in (up, down))
        built = CPU.moe(router, *parts, replace(routing, held=numbers))
        assert isinstance(built, GroupedExperts)
        return built

    total = torch.zeros_like(x)
    for rank, copies in enumerate(COPIES):
        own = range(2 * rank, 2 * rank + 2)
        experts = CopiedExperts(held(tuple(own), own), HOMES, rank, len(COPIES))
        experts.use(COPIES, held(copies, range(len(copies))))
        total += experts(x)
        assert experts.tokens.sum() == (tokens * routing.top_k if rank == 0 else 0)
    torch.testing.assert_close(total, want, atol=1e-5, rtol=1e-5)
