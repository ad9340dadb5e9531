"""Routed experts whose weights are packed for the C++ kernels. Used by the table of CPUs."""

from torch import Tensor

from kvasir_runtime.kernels import moe
from kvasir_runtime.kernels.cpu import linear
from kvasir_runtime.kernels.cpu.library import Library
from kvasir_runtime.kernels.linear import Build, Linear, Weight


def packed_experts(library: Library, build: Build, gated: Build) -> moe.BuildMoe:
    """The same with our own kernels for the weights that they are made for; the builders are for others."""
    otherwise = moe.grouped(build, gated)

    def built(router: Tensor, gate_up: Weight, down: Weight, top_k: int, renormalised: bool) -> Linear:
        if not (linear.takes(library, gate_up) and linear.takes(library, down)):
            return otherwise(router, gate_up, down, top_k, renormalised)
        experts = router.shape[0]
        return moe.GroupedExperts(
            router=build(router, None),
            gate_up=linear.packed_together(library, tuple(moe.parts(gate_up, experts)), gated=True),
            down=linear.packed_together(library, tuple(moe.parts(down, experts))),
            top_k=top_k,
            renormalised=renormalised,
        )

    return built
