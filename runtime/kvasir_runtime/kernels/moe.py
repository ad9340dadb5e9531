"""A feed-forward layer of many experts, of which a router chooses a few for each token.

    logits[t, e] = linear(x[t])[e] by the router's weight                # kernels.linear, rounded to x's dtype
    chosen[t]    = the top_k experts with the largest logits, of equals the lower
    share[t, e]  = exp(logits[t, e]) / sum(exp(logits[t, f]) for f in (chosen[t] if renormalised else all experts))
    out[t]       = sum(share[t, e] * (down[e] @ act_and_mul(gate_up[e] @ x[t], "silu")) for e in chosen[t])

router:  (experts, hidden), x's dtype
gate_up: (experts * 2 * inner, hidden), expert after expert, in each the gate first, or QuantizedWeight
down:    (experts * hidden, inner), or QuantizedWeight
x:       (tokens, hidden), contiguous, possibly none; out: (tokens, hidden), same dtype
Shares and the last sum are in float32; in 16-bit types what is between the products and what an expert gives may be
rounded too. A token's result does not depend on the others where linear layers' do not. Built once, like a linear
layer: the builder may repack the weights one expert at a time, and the caller should drop its own references.
Source: Shazeer et al. 2017; softmax before choosing and scaling to sum 1 behind it is Mixtral's softmax of the chosen.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kvasir_runtime.kernels import act_and_mul, linear, quantized
from kvasir_runtime.kernels.linear import Build, Linear, Weight
from kvasir_runtime.kernels.quantized import QuantFormat, QuantizedWeight

BuildMoe = Callable[[Tensor, Weight, Weight, int, bool], Linear]
"""(router, gate_up, down, top_k, renormalised) -> x -> out."""


def shares(logits: Tensor, top_k: int, renormalised: bool) -> tuple[Tensor, Tensor]:
    """Of each token the experts that it goes to, ascending, int64, and their shares, float32: both (tokens, top_k)."""
    wide = logits.float()
    chosen = wide.sort(dim=1, descending=True, stable=True).indices[:, :top_k].sort(dim=1).values
    if renormalised:
        return chosen, wide.gather(1, chosen).softmax(dim=1)
    return chosen, wide.softmax(dim=1).gather(1, chosen)


def parts(weight: Weight, experts: int) -> Iterator[Weight]:
    """Each expert's rows, as views."""
    rows = weight.shape[0] // experts
    for first in range(0, experts * rows, rows):
        yield weight.rows(first, rows) if isinstance(weight, QuantizedWeight) else weight[first : first + rows]


def reference(router: Tensor, gate_up: Weight, down: Weight, top_k: int, renormalised: bool) -> Linear:
    """Expert after expert, each for the tokens that chose it, straight into a float32 sum."""
    experts = router.shape[0]
    ups, downs = ([linear.reference(part, None) for part in parts(weight, experts)] for weight in (gate_up, down))

    return partial(_expert_after_expert, linear.reference(router, None), tuple(ups), tuple(downs), top_k, renormalised)


def _expert_after_expert(
    router: Linear, ups: tuple[Linear, ...], downs: tuple[Linear, ...], top_k: int, renormalised: bool, x: Tensor
) -> Tensor:
    chosen, share = shares(router(x), top_k, renormalised)
    out = torch.zeros_like(x, dtype=torch.float32)
    for expert, (up, down) in enumerate(zip(ups, downs, strict=True)):
        token, which = (chosen == expert).nonzero(as_tuple=True)
        if token.shape[0]:
            given = down(act_and_mul.reference(up(x[token]), "silu"))
            out.index_add_(0, token, given.float() * share[token, which, None])
    return out.to(x.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedExperts:
    """Experts as linear layers of their own: tokens are sorted by expert, and each expert that has some is run once."""

    router: Linear
    gate_up: tuple[Linear, ...]
    down: tuple[Linear, ...]
    top_k: int
    renormalised: bool

    def __call__(self, x: Tensor) -> Tensor:
        """See the module. Asks the device how many tokens each expert has, so it is for processors."""
        chosen, share = shares(self.router(x), self.top_k, self.renormalised)
        order = chosen.view(-1).argsort(stable=True)
        rows = x.index_select(0, order // self.top_k)
        given, first = torch.empty_like(rows), 0
        counts = torch.bincount(chosen.view(-1), minlength=len(self.down)).tolist()
        for gate_up, down, count in zip(self.gate_up, self.down, counts, strict=True):
            if count:
                given[first : first + count] = down(gate_up(rows[first : first + count]))
                first += count
        back = torch.empty_like(rows).index_copy_(0, order, given).view(-1, self.top_k, x.shape[1])
        return (back.float() * share.unsqueeze(2)).sum(dim=1).to(x.dtype)


def grouped(build: Build, gated: Build) -> BuildMoe:
    """The builder whose experts are linear layers of the given builders. gated: as kernels.gated."""

    def built(router: Tensor, gate_up: Weight, down: Weight, top_k: int, renormalised: bool) -> Linear:
        experts = router.shape[0]
        return GroupedExperts(
            router=build(router, None),
            gate_up=tuple(gated(part, None) for part in parts(gate_up, experts)),
            down=tuple(build(part, None) for part in parts(down, experts)),
            top_k=top_k,
            renormalised=renormalised,
        )

    return built


def cases(generator: torch.Generator) -> Iterator[tuple[object, ...]]:
    """The builder's arguments and an x to call the result with. No token is in doubt about where to go."""
    sizes = ((1, 8, 2, 16, 12), (5, 4, 1, 33, 7), (19, 6, 3, 64, 40), (40, 3, 3, 32, 32))
    for tokens, experts, top_k, hidden, inner in sizes:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            router, gate_up, down = _random(generator, experts, hidden, inner)
            x = sure(router, tokens, top_k, generator)
            plain = tuple(tensor.to(dtype) for tensor in (router, gate_up, down))
            yield *plain, top_k, tokens % 2 == 1, x.to(dtype)
    for format_ in (QuantFormat(bits=8), QuantFormat(bits=4), QuantFormat(bits=8, group=0, wide=True, floating=True)):
        router, gate_up, down = _random(generator, 4, 64, 32)
        both = (quantized.drawn(format_, weight.shape[0], weight.shape[1], generator) for weight in (gate_up, down))
        yield router, *both, 2, True, sure(router, 7, 2, generator)


def sure(router: Tensor, tokens: int, top_k: int, generator: torch.Generator) -> Tensor:
    """Rows whose top_k-th expert is clear of the next, however logits are rounded: (tokens, hidden) float32."""
    found = torch.empty(0, router.shape[1])
    while found.shape[0] < tokens:
        x = torch.randn(4 * tokens, router.shape[1], generator=generator)
        best = (x @ router.T).sort(dim=1, descending=True).values
        clear = best[:, top_k - 1] - best[:, top_k] > 0.1 if top_k < router.shape[0] else best[:, 0] == best[:, 0]
        found = torch.cat((found, x[clear]))
    return found[:tokens].contiguous()


def _random(generator: torch.Generator, experts: int, hidden: int, inner: int) -> tuple[Tensor, Tensor, Tensor]:
    router = torch.randn(experts, hidden, generator=generator) / hidden**0.5
    gate_up = torch.randn(experts * 2 * inner, hidden, generator=generator) / hidden**0.5
    return router, gate_up, torch.randn(experts * hidden, inner, generator=generator) / inner**0.5
