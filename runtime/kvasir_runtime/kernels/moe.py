"""A feed-forward layer of many experts, of which a router chooses a few for each token.

    logits[t, e] = linear(x[t])[e] by the router's weight and bias       # kernels.linear, rounded to x's dtype
    score[t, e]  = logits[t, e], or sigmoid(logits[t, e]) by the routing, with the choice's bias;
                   with that in place of logits exp(logits[t, e]) / sum(exp(logits[t, f]) for all f)
    kept[t]      = experts of the top_groups groups with the largest sums of their group_best largest scores
    chosen[t]    = the top_k of those with the largest scores, of equals the lower
    share[t, e]  = exp(logits[t, e]) / sum(exp(logits[t, f]) for f in (chosen[t] if renormalised else all experts))
                   of sigmoids sigmoid(logits[t, e]), over their sum for f in chosen[t] if renormalised
                   of a sparse mixer as `expert_routing.mixed` has it
    out[t]       = sum(share[t, e] * (down[e] @ act_and_mul(gate_up[e] @ x[t], activation)) for e in chosen[t])
                   or, of scaled inputs, down[e] @ act_and_mul(gate_up[e] @ (share[t, e] * x[t]), activation)

    where experts compute in a space of their own, read[t] in place of x[t] but for the router, and its width for hidden
    where a rank holds some experts only, the sum is over those of chosen[t] that it holds

router:  (experts, hidden), x's dtype
gate_up: (experts * 2 * inner, hidden), expert after expert, in each the gate first, or QuantizedWeight; with relu2
         (experts * inner, hidden), since those experts have no gate
down:    (experts * hidden, inner), or QuantizedWeight; these two and their biases of the held experts alone
biases:  of the products, and of the choice alone
x:       (tokens, hidden), contiguous, possibly none; read: the same of what experts read, x where it is None;
         out: as read, same dtype
Shares and the last sum are in float32; in 16-bit types what is between the products and what an expert gives may be
rounded too. Logits of sigmoids, and with a bias of the choice, are in float32. A token's result does not depend on the
others where linear layers' do not. Built once, like a linear layer: the builder may repack the weights one expert at a
time, and the caller should drop its own references.
Sources: Shazeer et al. 2017; softmax before choosing and scaling to sum 1 behind it is Mixtral's softmax of the chosen.
DeepSeek-AI 2024 (V2: groups; V3: sigmoids, and a bias that balances experts without changing shares).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from kvasir_runtime.kernels import act_and_mul, linear, quantized
from kvasir_runtime.kernels.act_and_mul import Activation
from kvasir_runtime.kernels.expert_routing import Routing, ranked, shares
from kvasir_runtime.kernels.linear import Build, Linear, Weight
from kvasir_runtime.kernels.quantized import QuantFormat, QuantizedWeight


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertBiases:
    """router: (experts,), gate_up: (experts * 2 * inner,), down: (experts * hidden,), of the products, in their dtype.

    choice: (experts,) float32, added to scores where experts are chosen by them, and not to shares.
    """

    router: Tensor | None = None
    choice: Tensor | None = None
    gate_up: Tensor | None = None
    down: Tensor | None = None


NO_BIASES = ExpertBiases()


class RoutedExperts(Protocol):
    """(x, read) -> out."""

    def __call__(self, x: Tensor, read: Tensor | None = None) -> Tensor: ...


class BuildMoe(Protocol):
    """(router, gate_up, down, ...) -> (x, read) -> out."""

    def __call__(
        self,
        router: Tensor,
        gate_up: Weight,
        down: Weight,
        routing: Routing,
        biases: ExpertBiases = NO_BIASES,
        activation: Activation = "silu",
    ) -> RoutedExperts: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InFloat32:
    """A product in float32, of x in any type."""

    product: Linear

    def __call__(self, x: Tensor) -> Tensor:
        """As the product."""
        return self.product(x.float())


def router_logits(build: Build, router: Tensor, routing: Routing, biases: ExpertBiases) -> Linear:
    """x -> logits. Sigmoids of logits, and biases of a choice, lie nearer to one another than 16 bits tell apart."""
    if not routing.sigmoid and biases.choice is None:
        return build(router, biases.router)
    return InFloat32(product=build(router.float(), None if biases.router is None else biases.router.float()))


def parts(weight: Weight, experts: int) -> Iterator[Weight]:
    """Each expert's rows, as views."""
    rows = weight.shape[0] // experts
    for first in range(0, experts * rows, rows):
        yield weight.rows(first, rows) if isinstance(weight, QuantizedWeight) else weight[first : first + rows]


def bias_parts(bias: Tensor | None, experts: int) -> tuple[Tensor | None, ...]:
    """Each expert's numbers, as views."""
    return (None,) * experts if bias is None else bias.chunk(experts)


def products(build: Build, weight: Weight, bias: Tensor | None, experts: int) -> tuple[Linear, ...]:
    """Each expert as a linear layer of its own."""
    both = zip(parts(weight, experts), bias_parts(bias, experts), strict=True)
    return tuple(build(part, of_it) for part, of_it in both)


def reference(
    router: Tensor,
    gate_up: Weight,
    down: Weight,
    routing: Routing,
    biases: ExpertBiases = NO_BIASES,
    activation: Activation = "silu",
) -> RoutedExperts:
    """Expert after expert, each for the tokens that chose it, straight into a float32 sum."""
    held = routing.computed(router)
    ups = products(linear.reference, gate_up, biases.gate_up, len(held))
    downs = products(linear.reference, down, biases.down, len(held))
    logits = router_logits(linear.reference, router, routing, biases)
    return partial(_expert_after_expert, logits, held, ups, downs, routing, biases.choice, activation)


def _expert_after_expert(
    router: Linear,
    held: range,
    ups: tuple[Linear, ...],
    downs: tuple[Linear, ...],
    routing: Routing,
    bias: Tensor | None,
    activation: Activation,
    x: Tensor,
    read: Tensor | None = None,
) -> Tensor:
    chosen, share = shares(*ranked(router(x), routing, bias), routing)
    x = x if read is None else read
    out = torch.zeros_like(x, dtype=torch.float32)
    for expert, up, down in zip(held, ups, downs, strict=True):
        token, which = (chosen == expert).nonzero(as_tuple=True)
        if token.shape[0]:
            rows, part = x[token], share[token, which, None]
            if routing.scaled_inputs:
                rows, part = (rows * part).to(x.dtype), torch.ones_like(part)
            given = down(act_and_mul.reference(up(rows), activation))
            out.index_add_(0, token, given.float() * part)
    return out.to(x.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedExperts:
    """Experts as linear layers of their own: tokens are sorted by expert, and each expert that has some is run once.

    bias: of the choice.
    """

    router: Linear
    gate_up: tuple[Linear, ...]
    down: tuple[Linear, ...]
    routing: Routing
    bias: Tensor | None = None

    def __call__(self, x: Tensor, read: Tensor | None = None) -> Tensor:
        """See the module. Asks the device how many tokens each expert has, so it is for processors."""
        chosen, share = self.choice(x)
        held = self.routing.held or range(len(self.down))
        counts = torch.bincount(chosen.view(-1), minlength=held.stop)
        order = chosen.view(-1).argsort(stable=True)
        if self.routing.held is not None:
            others, counts = int(counts[: held.start].sum()), counts[held.start : held.stop]
            order = order[others : others + int(counts.sum())]
        return self.summed(x if read is None else read, share, [(self, order, counts)])

    def choice(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """As `expert_routing.shares`."""
        return shares(*ranked(self.router(x), self.routing, self.bias), self.routing)

    def summed(self, x: Tensor, share: Tensor, parts: "Iterable[tuple[GroupedExperts, Tensor, Tensor]]") -> Tensor:
        """out. x: what experts read. parts: experts, which of all choices (tokens * top_k) they compute, and how many
        of these each of them; choices in no part add nothing.
        """
        empty = x.new_empty if self.routing.held is None else x.new_zeros
        back = empty(share.numel(), x.shape[1])
        for experts, order, counts in parts:
            rows = x.index_select(0, order // self.routing.top_k)
            if self.routing.scaled_inputs:
                rows = (rows * share.view(-1)[order, None]).to(x.dtype)
            back.index_copy_(0, order, experts.given(rows, counts))
        if self.routing.scaled_inputs:
            share = torch.ones_like(share)
        back = back.view(-1, self.routing.top_k, x.shape[1])
        return (back.float() * share.unsqueeze(2)).sum(dim=1).to(x.dtype)

    def given(self, rows: Tensor, counts: Tensor) -> Tensor:
        """What the experts make of rows, (rows, hidden), of which counts[i], int64, are the i-th's, in this order."""
        out, first = torch.empty_like(rows), 0
        for gate_up, down, count in zip(self.gate_up, self.down, counts.tolist(), strict=True):
            if count:
                out[first : first + count] = down(gate_up(rows[first : first + count]))
                first += count
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseMoeBlock:
    """Routed experts, scaled, and one more that all tokens go through, if there is one, perhaps behind a gate.

    latent: products into the space in which routed experts compute, and out of it; None where that is x's own.
    """

    routed: RoutedExperts
    shared: Callable[[Tensor], Tensor] | None
    shared_gate: Linear | None
    scale: float = 1.0
    latent: tuple[Linear, Linear] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """(tokens, hidden) -> (tokens, hidden)."""
        out = self.routed(x) if self.latent is None else self.latent[1](self.routed(x, self.latent[0](x)))
        if self.scale != 1:
            out = out * self.scale
        if self.shared is None:
            return out
        given = self.shared(x)
        return out + (given if self.shared_gate is None else torch.sigmoid(self.shared_gate(x)) * given)


def grouped(build: Build, gated: Callable[[Activation], Build]) -> BuildMoe:
    """The builder whose experts are linear layers of the given builders. gated: with an activation behind them."""

    def built(
        router: Tensor,
        gate_up: Weight,
        down: Weight,
        routing: Routing,
        biases: ExpertBiases = NO_BIASES,
        activation: Activation = "silu",
    ) -> RoutedExperts:
        experts = len(routing.computed(router))
        return GroupedExperts(
            router=router_logits(build, router, routing, biases),
            gate_up=products(gated(activation), gate_up, biases.gate_up, experts),
            down=products(build, down, biases.down, experts),
            routing=routing,
            bias=biases.choice,
        )

    return built


def cases(generator: torch.Generator) -> Iterator[tuple[object, ...]]:
    """The builder's arguments, an x to call the result with, and in the last case what experts read in its place.

    No token is in doubt about where to go.
    """
    sizes = ((1, 8, 2, 16, 12), (5, 4, 1, 33, 7), (19, 6, 3, 64, 40), (40, 3, 3, 32, 32))
    for tokens, experts, top_k, hidden, inner in sizes:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            router, gate_up, down = _random(generator, experts, hidden, inner)
            routing = Routing(top_k=top_k, renormalised=tokens % 2 == 1)
            x = sure(router, tokens, routing, generator)
            plain = tuple(tensor.to(dtype) for tensor in (router, gate_up, down))
            yield *plain, routing, x.to(dtype)
    for format_ in (QuantFormat(bits=8), QuantFormat(bits=4), QuantFormat(bits=8, group=0, wide=True, floating=True)):
        router, gate_up, down = _random(generator, 4, 64, 32)
        both = (quantized.drawn(format_, weight.shape[0], weight.shape[1], generator) for weight in (gate_up, down))
        routing = Routing(top_k=2, renormalised=True)
        yield router, *both, routing, sure(router, 7, routing, generator)
    yield from _biased_cases(generator)
    yield from _ungated_cases(generator)


def _biased_cases(generator: torch.Generator) -> Iterator[tuple[object, ...]]:
    """Biases, a clamped gate, sigmoids, groups and a bias of the choice."""
    sigmoids = Routing(top_k=3, renormalised=True, sigmoid=True, groups=4, top_groups=2, group_best=2)
    routings = (Routing(top_k=2, renormalised=True), Routing(top_k=3, renormalised=False, groups=4, top_groups=2))
    mixer = Routing(top_k=2, renormalised=False, mixer=0.2)
    scaled = Routing(top_k=2, renormalised=False, sigmoid=True, scaled_inputs=True)
    for routing in (*routings, sigmoids, replace(sigmoids, renormalised=False, groups=1), scaled, mixer):
        for dtype in (torch.float32, torch.float16)[: 1 + routing.sigmoid]:
            router, gate_up, down = _random(generator, 16, 32, 16)
            numbers = (torch.randn(size, generator=generator) / 2 for size in (16, 16, 16 * 2 * 16, 16 * 32))
            of_router, of_choice, of_up, of_down = numbers
            choice = None if routing in (scaled, mixer) else of_choice
            x = sure(router, 9, routing, generator, of_router, choice)
            given = ExpertBiases(
                router=of_router.to(dtype), choice=choice, gate_up=of_up.to(dtype), down=of_down.to(dtype)
            )
            wide = 4 if dtype == torch.float32 else 1  # so that gates are clamped
            weights = tuple(tensor.to(dtype) for tensor in (router, gate_up * wide, down))
            yield *weights, routing, given, "clamped" if routing.group_best == 1 else "silu", x.to(dtype)


def _ungated_cases(generator: torch.Generator) -> Iterator[tuple[object, ...]]:
    """Experts without a gate, in full and in 8 bits, and in a space of their own."""
    routing = Routing(top_k=3, renormalised=True, sigmoid=True)
    for dtype in (torch.float32, torch.bfloat16, None):
        router, up, down = _random(generator, 8, 64, 32)
        up = up[: 8 * 32]
        x = sure(router, 9, routing, generator, None, choice := torch.randn(8, generator=generator) / 2)
        if dtype is None:
            both = (
                quantized.drawn(QuantFormat(bits=8), weight.shape[0], weight.shape[1], generator)
                for weight in (up, down)
            )
            yield router, *both, routing, ExpertBiases(choice=choice), "relu2", x
            continue
        given = (tensor.to(dtype) for tensor in (router, up, down))
        yield *given, routing, ExpertBiases(choice=choice), "relu2", x.to(dtype)
    _, up, down = _random(generator, 8, 48, 16)
    yield router, up, down, routing, ExpertBiases(choice=choice), "silu", x, torch.randn(9, 48, generator=generator)


def sure(
    router: Tensor,
    tokens: int,
    routing: Routing,
    generator: torch.Generator,
    bias: Tensor | None = None,
    of_choice: Tensor | None = None,
) -> Tensor:
    """Rows whose top_k-th expert is clear of the next, however logits are rounded: (tokens, hidden) float32.

    Where experts have groups, so is the last group that is chosen from.
    """
    found, top_k = torch.empty(0, router.shape[1]), routing.top_k
    least = 0.02 if routing.sigmoid or of_choice is not None else 0.1
    while found.shape[0] < tokens:
        x = torch.randn(4 * tokens, router.shape[1], generator=generator)
        logits = F.linear(x, router, bias)
        best = ranked(logits, routing, of_choice)[0].sort(dim=1, descending=True).values
        clear = best[:, top_k - 1] - best[:, top_k] > least if top_k < router.shape[0] else best[:, 0] == best[:, 0]
        if routing.groups > 1:
            alone = ranked(logits, replace(routing, groups=1), of_choice)[0].view(x.shape[0], routing.groups, -1)
            of_groups = alone.topk(routing.group_best, dim=2).values.sum(dim=2).sort(dim=1, descending=True).values
            clear &= of_groups[:, routing.top_groups - 1] - of_groups[:, routing.top_groups] > least
        found = torch.cat((found, x[clear]))
    return found[:tokens].contiguous()


def _random(generator: torch.Generator, experts: int, hidden: int, inner: int) -> tuple[Tensor, Tensor, Tensor]:
    router = torch.randn(experts, hidden, generator=generator) / hidden**0.5
    gate_up = torch.randn(experts * 2 * inner, hidden, generator=generator) / hidden**0.5
    return router, gate_up, torch.randn(experts * hidden, inner, generator=generator) / inner**0.5
