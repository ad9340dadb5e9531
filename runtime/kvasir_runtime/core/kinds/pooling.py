"""A request for one vector of its prompt: the prompt is computed, and no token follows."""

from dataclasses import dataclass, field

from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.plan import HiddenOf, SampledTokens, hidden_of
from kvasir_runtime.core.plan_builder import NOTHING, LaunchedChunk, PlanBuilder
from kvasir_runtime.core.request_state import RequestState
from kvasir_runtime.core.sequence import SequenceState
from kvasir_runtime.wire import EngineOutput, EngineRequest, Logprobs, SamplingConfig


@dataclass(slots=True, eq=False)
class PromptPooling:
    """It ends with the computation of its prompt. A mean is over all of it, so none of it is taken from the cache.

    By an encoder a prompt is computed in one step, whatever the budget: it is admitted where there is room for it.
    """

    request: RequestState
    sequence: SequenceState
    limits: Limits
    sampling: SamplingConfig = field(init=False)
    num_rows: int = field(init=False, default=1)
    remaining: int = field(init=False, default=0)
    is_ending: bool = field(init=False, default=False)
    _hidden_of: HiddenOf = field(init=False)

    def __post_init__(self) -> None:
        self.sampling = self.request.request.sampling
        pooling = self.request.request.pooling
        self._hidden_of = "last" if pooling is None else hidden_of(pooling)

    @property
    def reusable(self) -> int:
        """All tokens but one, and none where the hidden states of others are pooled."""
        return 0 if self._hidden_of != "last" else len(self.sequence.tokens) - 1

    def prepare(self) -> int:
        """The whole prompt must fit."""
        return self.limits.blocks_of_sequence(len(self.sequence.tokens))

    def need(self, budget: int) -> int | None:
        """None once the prompt is computed."""
        lacking = len(self.sequence.tokens) - self.sequence.computed
        count = lacking if self.limits.computes_whole else min(lacking, budget)
        return self.sequence.blocks.lacks(self.sequence.computed + count) if count > 0 else None

    def advance(self, builder: PlanBuilder, blocks: list[int]) -> None:
        """One chunk; a mean takes all its positions, the others the first or the last one of the prompt."""
        sequence = self.sequence
        start = sequence.computed
        end = len(sequence.tokens)
        if not self.limits.computes_whole:
            end = min(end, start + builder.budget)
        if blocks:
            builder.grow(sequence, end, iter(blocks))
        is_last = end == len(sequence.tokens)
        wanted = {"mean": (start, end), "cls": (0, 1) if start == 0 else NOTHING}
        pools = wanted.get(self._hidden_of, (end - 1, end) if is_last else NOTHING)
        builder.compute(sequence, end, samples=False, pools=pools, completes_vector=is_last)

    def accept(
        self,
        chunk: LaunchedChunk,
        sampled: SampledTokens | None,  # noqa: ARG002 - nothing is drawn
        scored: tuple[Logprobs, ...],  # noqa: ARG002
        vector: bytes,
        now: float,  # noqa: ARG002
    ) -> tuple[EngineOutput, ...]:
        """A complete vector ends it."""
        if not chunk.pools:
            return ()
        if not vector:
            return (self.request.invalid_output(),)
        cached = self.request.cached_tokens or 0
        request_id = self.request.request_id
        return (EngineOutput(request_id=request_id, finish_reason="stop", cached_tokens=cached, pooled=vector),)

    def release(self) -> tuple[SequenceState, ...]:
        """It computes its prompt again."""
        return (self.sequence,)

    def inject(self, token_ids: tuple[int, ...]) -> None:
        """Ignored: it has no answer."""

    def drop_in_flight(self) -> None:
        """It draws nothing."""


def refusal(request: EngineRequest, longest: int) -> str:
    """Why it can never run; empty when it can. The last token is computed too, so the cache must have room for it."""
    if request.prompt_tokens > longest:
        return f"the prompt has {request.prompt_tokens} tokens, and may have {longest} here"
    return ""
