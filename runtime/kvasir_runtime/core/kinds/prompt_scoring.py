"""A request that also reports the logprobs of its prompt; what follows the prompt is that of another kind."""

from collections.abc import Sequence
from math import isnan

from kvasir_runtime.core.kinds.interface import RequestKind
from kvasir_runtime.core.plan import SampledTokens
from kvasir_runtime.core.plan_builder import LaunchedChunk, PlanBuilder
from kvasir_runtime.core.sequence import SequenceState
from kvasir_runtime.wire import EngineOutput, Logprobs


class PromptScoring:
    """Each token of the prompt but the first gets its logprobs from the position before it, in the chunks of `inner`.

    _launched: tokens whose logprobs are done once every launched plan is collected; _collected: those that are.
    """

    __slots__ = ("_answers", "_collected", "_inner", "_launched", "num_rows", "request", "sampling", "sequence")

    def __init__(self, inner: RequestKind) -> None:
        self._inner = inner
        self.request = inner.request
        self.sequence = inner.sequence
        self.sampling = inner.sampling
        self.num_rows = inner.num_rows
        beam = inner.request.request.beam
        self._answers = (inner.request.request_id,) if beam is None else beam.answers
        self._launched = self._collected = 1

    @property
    def reusable(self) -> int:
        """Logprobs come out of computing a token, so nothing behind the last scored one is taken from the cache."""
        if self._launched < self.request.prompt_tokens:
            return self._launched - 1
        return self._inner.reusable

    @property
    def remaining(self) -> int:
        """Of what follows the prompt."""
        return self._inner.remaining

    @property
    def is_ending(self) -> bool:
        """Whether what follows the prompt ends."""
        return self._inner.is_ending

    def prepare(self) -> int:
        """As the inner kind."""
        return self._inner.prepare()

    def need(self, budget: int) -> int | None:
        """As the inner kind."""
        return self._inner.need(budget)

    def advance(self, builder: PlanBuilder, blocks: list[int]) -> None:
        """The chunk of the prompt that the inner kind computes is scored."""
        start = self.sequence.computed
        self._inner.advance(builder, blocks)
        first = max(start + 1, self._launched)
        last = min(self.sequence.computed + 1, self.request.prompt_tokens)
        if first < last:
            self._launched = last
            builder.score(first, last)

    def accept(
        self,
        chunk: LaunchedChunk,
        sampled: SampledTokens | None,
        scored: tuple[Logprobs, ...],
        vector: bytes,
        now: float,
    ) -> Sequence[EngineOutput]:
        """Logprobs of the prompt come before what the inner kind gives, for every answer that it will have."""
        outputs = self._inner.accept(chunk, sampled, scored, vector, now)
        if not scored:
            return outputs
        if any(isnan(one.logprob) for one in scored):
            return [self.request.invalid_output(name) for name in self._answers]
        self._collected += len(scored)
        cached = self.request.cached_tokens or 0
        prompt = [EngineOutput(request_id=name, cached_tokens=cached, prompt_logprobs=scored) for name in self._answers]
        return [*prompt, *outputs]

    def release(self) -> Sequence[SequenceState]:
        """As the inner kind. Tokens whose logprobs are launched are not scored again."""
        return self._inner.release()

    def inject(self, token_ids: tuple[int, ...]) -> None:
        """As the inner kind."""
        self._inner.inject(token_ids)

    def drop_in_flight(self) -> None:
        """Logprobs in flight are computed again."""
        self._launched = self._collected
        self._inner.drop_in_flight()
