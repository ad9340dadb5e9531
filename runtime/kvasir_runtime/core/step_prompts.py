"""The prompts that share what decoding leaves of a step, and the blocks that are held for what each computes.

Called by the scheduler while it makes a plan. Blocks are taken for a prompt's share, not for the whole budget: where
layers see a window, they are taken chunk by chunk, and what is only given back later would preempt others meanwhile.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kvasir_runtime.core.blocks import BlockPool
from kvasir_runtime.core.kinds.interface import RequestKind
from kvasir_runtime.core.plan_builder import PlanBuilder
from kvasir_runtime.core.prefill_shares import UNLIMITED, LongPrompts, PromptPart, shares


class PromptInStep(NamedTuple):
    """A request with a row that lacks more than a token. held: blocks for as many tokens of it as are covered.

    may_grow: no request before it waits for blocks, so that it may take more.
    """

    kind: RequestKind
    held: list[int]
    covered: int
    part: PromptPart
    may_grow: bool


def lacking(kind: RequestKind) -> int:
    """Tokens of a request's sequence that no plan computes yet, the one in flight included."""
    sequence = kind.sequence
    return len(sequence.tokens) + sequence.in_flight - sequence.computed


def prompt_in_step(builder: PlanBuilder, kind: RequestKind, held: list[int], covered: int) -> PromptInStep:
    """With what it lacks now."""
    may_grow = kind.request.data_rank not in builder.out_of_blocks
    return PromptInStep(kind, held, covered, _part(kind, builder.long), may_grow=may_grow)


def expected_shares(running: Iterable[RequestKind], budget: int, long: LongPrompts = UNLIMITED) -> dict[str, int]:
    """Tokens of a step that each prompt among requests that still run computes, by id, if none is admitted.

    budget: of them all, by seniority. long: as the builder's. At least one token is for prompts, so that the first one
    can go on.
    """
    prompts, num_decoding = [], 0
    for kind in running:
        if kind.request.phase != "running":  # it was just preempted
            continue
        if lacking(kind) > 1:
            prompts.append(kind)
        else:
            num_decoding += kind.num_rows
    given = shares([_part(kind, long) for kind in prompts], max(1, budget - num_decoding))
    return {kind.request.request_id: count for kind, count in zip(prompts, given, strict=True)}


def compute_prompts(builder: PlanBuilder, prompts: Sequence[PromptInStep], pool: BlockPool, now: float) -> int:
    """Divide what is left of the budget among prompts, by seniority. Returns the tokens that they take.

    Blocks of a share that became smaller are given back. One that became larger takes what is free, and stays as it was
    where blocks are short.
    """
    before = builder.budget
    given = shares([prompt.part for prompt in prompts], builder.budget)
    for (kind, held, covered, _, may_grow), share in zip(prompts, given, strict=True):
        count, need, own = share, kind.need(share) or 0, pool.of_rank(kind.request.data_rank)
        if need > len(held) and not (may_grow and own.can_take(need - len(held))):
            count, need = covered, len(held)
        if need != len(held):
            kind.request.bill(kind.request.billed_blocks - len(held) + need, now)
        own.release(held[need:])
        blocks = held[:need] + own.take(max(0, need - len(held)), kind.request.request.tenant)
        if count:
            rest = builder.budget - count
            builder.budget = count
            kind.advance(builder, blocks)
            if len(kind.sequence.tokens) > builder.long.above:
                builder.long_tokens += count - builder.budget
            builder.budget += rest
    return before - builder.budget


def _part(kind: RequestKind, long: LongPrompts) -> PromptPart:
    return PromptPart(long.limited(lacking(kind), len(kind.sequence.tokens)), kind.request.request.priority)
