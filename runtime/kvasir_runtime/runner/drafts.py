"""Verification of drafts: a chunk that ends in guessed tokens is sampled from at each of their positions.

The draw at a position is a function of its logits and of the request's noise there, and a draft is part of the answer
if and only if it is what is drawn in its place. So an answer has the tokens that it has without drafts, in whatever way
it is sampled, and however good the drafts are.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Final, Protocol

import msgspec

from kvasir_runtime.core.plan import Chunk, SampledTokens, StepPlan, StepResults
from kvasir_runtime.runner.sampling.host_sampler import HostSampler
from kvasir_runtime.runner.sampling.verified_drafts import VerifiedDrafts
from kvasir_runtime.runner.state.host_state import HostRowState
from kvasir_runtime.wire import EngineFacts

WRONG: Final = 0
"""Drafted where no draft can be made, so that the sequence rests as one whose drafts are wrong."""


class PlanDrafter(Protocol):
    """Chooses the drafts of a plan when the runner launches it. It must see each plan once, in their order."""

    def draft(self, plan: StepPlan) -> tuple[StepPlan, dict[int, int]]:
        """The plan with its drafts, which the rows have too; by row how many drafts of the plan are missing.

        plan: one that the rows have applied.
        """
        ...


NewPlanDrafter = Callable[[HostRowState, HostSampler, EngineFacts], PlanDrafter]
"""From the rows, the sampler and the facts of a runner that verifies the drafts."""


def refusal(facts: EngineFacts, *, overlaps: bool, in_cpp: bool, divided: bool = False) -> str:
    """Why drafts cannot be verified here; "" where they can.

    overlaps: as of the device's stream. in_cpp: rows are sampled by the C++ kernels, which read what penalties and bad
    words refer to from the row, drafts included; the operations of torch keep counts that know no drafts. divided:
    among ranks, each of which has states of its own.
    """
    if facts.head != "vocabulary":
        return "the model generates no tokens"
    if divided and any(attention.kind == "state" for attention in facts.attentions):
        return "the recurrent states of several ranks are not taken back behind a wrong draft"
    if overlaps:
        return "on CUDA the next step is launched before it is known which drafts of this one are right"
    return "" if in_cpp else "this processor or installation has no C++ kernels to sample with"


def sampled_positions(chunks: Sequence[Chunk]) -> list[Chunk]:
    """For each position that the chunks of a plan sample from a chunk without drafts that ends there, in order."""
    found = []
    for chunk in chunks:
        if not chunk.samples:
            continue
        if not chunk.drafts:
            found.append(chunk)
            continue
        known = chunk.num_tokens - len(chunk.drafts)
        found += [
            msgspec.structs.replace(
                chunk, num_tokens=known + place, drafts=(), min_tokens_left=max(0, chunk.min_tokens_left - place)
            )
            for place in range(len(chunk.drafts) + 1)
        ]
    return found


def verified_results(chunks: Sequence[Chunk], results: StepResults) -> StepResults:
    """Results with one entry for each chunk that samples. results: with one for each of `sampled_positions`."""
    if not any(chunk.drafts for chunk in chunks):
        return results
    return msgspec.structs.replace(results, sampled=verified(chunks, results.sampled))


def verified(chunks: Sequence[Chunk], sampled: Sequence[SampledTokens]) -> tuple[SampledTokens, ...]:
    """One entry for each chunk that samples. sampled: one for each of `sampled_positions`."""
    entries, found = iter(sampled), list[SampledTokens]()
    for chunk in chunks:
        if chunk.samples:
            samples = list(islice(entries, 1 + len(chunk.drafts)))
            found.append(accepted_tokens(chunk.drafts, samples) if chunk.drafts else samples[0])
    return tuple(found)


def accepted_tokens(drafts: Sequence[int], samples: Sequence[SampledTokens]) -> SampledTokens:
    """What a chunk with these drafts gave. samples: before each draft, and behind the last.

    A position whose logits are not finite is sampled from again by the next step, as the first.
    """
    answer = VerifiedDrafts(drafts)
    while answer.place is not None:
        answer.add(samples[answer.place])
    return answer.result


def with_undrafted(results: StepResults, undrafted: Mapping[int, int]) -> StepResults:
    """Results that report how many drafts of their plan were not made. undrafted: by row."""
    if not undrafted:
        return results
    sampled = [
        msgspec.structs.replace(one, undrafted=undrafted[one.row]) if one.row in undrafted else one
        for one in results.sampled
    ]
    return msgspec.structs.replace(results, sampled=tuple(sampled))


def with_drafts(plan: StepPlan, drafts: Mapping[int, Sequence[int]]) -> StepPlan:
    """The plan with these drafts. drafts: of each row that has `UNDRAFTED` ones, as many or fewer."""
    chunks = tuple(
        msgspec.structs.replace(
            chunk,
            num_tokens=chunk.num_tokens - len(chunk.drafts) + len(drafts[chunk.row]),
            drafts=tuple(drafts[chunk.row]),
        )
        if chunk.num_undrafted
        else chunk
        for chunk in plan.chunks
    )
    return msgspec.structs.replace(plan, chunks=chunks)
