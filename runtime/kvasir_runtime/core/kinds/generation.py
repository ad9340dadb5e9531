"""A request that is continued token by token, until a stop, a length or its grammar ends it."""

from dataclasses import dataclass, field

from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.plan import Insert, SampledTokens
from kvasir_runtime.core.plan_builder import LaunchedChunk, PlanBuilder
from kvasir_runtime.core.request_state import RequestState
from kvasir_runtime.core.sequence import SequenceState
from kvasir_runtime.core.speculation import kept_states
from kvasir_runtime.wire import EngineOutput, EngineRequest, FinishReason, Logprobs, SamplingConfig


@dataclass(slots=True, eq=False)
class Generation:
    """limit: length of prompt and answer at which it ends. stops: ids that end it.

    discarded_samples: samples in flight that bring nothing, since a grammar forced tokens in their places.
    pending_inject: ids that wait to be inserted behind its tokens. inserted: how many were; unreported: those that no
    output has named; undelivered: the last of its tokens, which no plan has brought to the runner.
    """

    request: RequestState
    sequence: SequenceState
    limits: Limits
    limit: int
    stops: frozenset[int]
    discarded_samples: int = field(init=False, default=0)
    pending_inject: tuple[int, ...] = field(init=False, default=())
    inserted: int = field(init=False, default=0)
    unreported: int = field(init=False, default=0)
    undelivered: tuple[int, ...] = field(init=False, default=())
    sampling: SamplingConfig = field(init=False)
    num_rows: int = field(init=False, default=1)
    _max_in_flight: int = field(init=False)
    _border: int = field(init=False)

    def __post_init__(self) -> None:
        self.sampling = self.request.request.sampling
        # The runner draws for a grammar once it has advanced it by the token before; it must know all but the last.
        # With stages it has the last token when the step before has left the last of them.
        most = self.limit if self.sampling.grammar is None else 1
        self._max_in_flight = most if self.limits.stages == 1 else 0
        # States end at borders of blocks on the way, so that later requests may continue from there.
        self._border = self.limits.block_size if self.limits.has_states and self.limits.prefix_cache else 1

    @property
    def reusable(self) -> int:
        """All tokens but one."""
        return len(self.sequence.tokens) - 1

    @property
    def remaining(self) -> int:
        """Up to its limit."""
        return max(0, self.limit - self.sequence.known)

    @property
    def is_ending(self) -> bool:
        """Whether its last token is in flight."""
        return self.sequence.known >= self.limit

    def prepare(self) -> int:
        """The whole of its tokens must fit. A plan that admits it names all of them."""
        self._insert()
        self.undelivered = ()
        return self.limits.blocks_of_sequence(len(self.sequence.tokens))

    def need(self, budget: int) -> int | None:
        """None also while ids wait for a sample in flight that they go behind."""
        sequence = self.sequence
        if self.pending_inject:
            self._insert()
            if self.pending_inject:
                return None
        known = len(sequence.tokens) + sequence.in_flight
        count = min(known - sequence.computed, budget)
        # At its limit it ends when its last sample is collected, and the last token is never computed.
        if count < 1 or known >= self.limit or sequence.in_flight > self._max_in_flight or sequence.unverified:
            return None
        return sequence.blocks.lacks(self._chunk_end(sequence.computed + count) + len(self._drafts(budget)))

    def advance(self, builder: PlanBuilder, blocks: list[int]) -> None:
        """One chunk; it samples where it computes the last known token."""
        sequence = self.sequence
        known = len(sequence.tokens) + sequence.in_flight
        end, drafts = self._chunk_end(min(known, sequence.computed + builder.budget)), self._drafts(builder.budget)
        sequence.drafts = ()
        if blocks:
            builder.grow(sequence, end + len(drafts), iter(blocks))
        if self.undelivered:
            place = len(sequence.tokens) - len(self.undelivered)
            builder.inserts.append(Insert(sequence.row, place, self.undelivered))
            self.undelivered = ()
        early = self.sampling.min_tokens
        if end < known:
            builder.compute(sequence, end, samples=False)
        elif early:
            generated = known - self.request.prompt_tokens - self.inserted
            builder.compute(sequence, end, samples=True, min_tokens_left=max(0, early - generated), drafts=drafts)
        else:
            builder.compute(sequence, end, samples=True, drafts=drafts)

    def accept(
        self,
        chunk: LaunchedChunk,
        sampled: SampledTokens | None,
        scored: tuple[Logprobs, ...],  # noqa: ARG002
        vector: bytes,  # noqa: ARG002
        now: float,  # noqa: ARG002
    ) -> tuple[EngineOutput, ...]:
        """Append the tokens; several at once are drafts, or those that a grammar forces after the one drawn."""
        sequence = self.sequence
        if sampled is None:
            return ()
        if self.discarded_samples:
            self.discarded_samples -= 1
            return ()
        if not (sampled.tokens or sampled.ended or sampled.error or sampled.invalid or sampled.deferred):
            raise ValueError(f"no token sampled for row {sequence.row}")
        sequence.in_flight -= 1
        sequence.deferred = sampled.deferred
        if sampled.invalid:
            return (self.request.invalid_output(),)
        if chunk.drafts:
            sequence.unverified = 0
            if sequence.active:  # else it has lost the blocks in which its drafts were computed
                sequence.computed = self._computed_to(chunk, sampled)
        elif len(sampled.tokens) > 1 or sampled.deferred:
            self.discarded_samples, sequence.in_flight = sequence.in_flight, 0
        if sampled.deferred:
            if not (self.limits.has_states and len(chunk.drafts) > sampled.undrafted):  # else its state is taken back
                sequence.computed = len(sequence.tokens) - 1
            return ()
        return (self._append(sampled),)

    def release(self) -> tuple[SequenceState, ...]:
        """It keeps its tokens and computes them again."""
        self.sequence.drafts = ()
        return (self.sequence,)

    def inject(self, token_ids: tuple[int, ...]) -> None:
        """They come behind its tokens as soon as none is in flight."""
        self.pending_inject += token_ids

    def drop_in_flight(self) -> None:
        """Samples in flight are drawn again."""
        self.sequence.in_flight = self.sequence.unverified = self.discarded_samples = 0

    def _drafts(self, budget: int) -> tuple[int, ...]:
        """The drafts that go with the last token, where its id is known and no other is to be computed, or only such as
        a state has to read again.
        """
        sequence = self.sequence
        lacks = len(sequence.tokens) - sequence.computed
        if not sequence.drafts or sequence.in_flight or (lacks > 1 and not self.limits.has_states):
            return ()
        room = budget - lacks
        if self.limits.has_states:
            most = kept_states.most_drafts(sequence.computed, len(sequence.tokens), self.limits.block_size)
            room = min(room, most)
        return sequence.drafts[: max(0, room)]

    def _computed_to(self, chunk: LaunchedChunk, sampled: SampledTokens) -> int:
        """Positions that hold behind a chunk with drafts. A state is one of the end of a chunk: behind a wrong draft it
        is taken back to the chunk's beginning.
        """
        all_right = sampled.accepted == len(chunk.drafts) - sampled.undrafted
        return chunk.end + sampled.accepted if all_right or not self.limits.has_states else chunk.start

    def _chunk_end(self, end: int) -> int:
        """Where the next chunk ends that may go up to end."""
        sequence = self.sequence
        border = end // self._border * self._border
        if sequence.computed < sequence.branch < border:
            return sequence.branch
        return border if border > sequence.computed else end

    def _insert(self) -> None:
        """Append what was injected, if nothing is in flight.

        The answer may become as long as before. What leaves no room for a token is dropped.
        """
        sequence = self.sequence
        if sequence.in_flight or not self.pending_inject:
            return
        tokens, self.pending_inject = self.pending_inject, ()
        longest = self.limits.max_sequence_tokens
        if len(sequence.tokens) + len(tokens) >= longest:
            return
        sequence.tokens.extend(tokens)
        sequence.drafts = ()  # they were to follow the tokens before
        self.limit = min(longest, self.limit + len(tokens))
        self.inserted += len(tokens)
        self.unreported += len(tokens)
        self.undelivered += tokens

    def _append(self, sampled: SampledTokens) -> EngineOutput:
        tokens = self.sequence.tokens
        answered = len(tokens)
        reason: FinishReason | None = None
        stop_token_id = None
        for token in sampled.tokens:
            reason = self._ending(token)
            if reason == "stop":
                stop_token_id = token
                break
            tokens.append(token)
            if reason is not None:
                break
        injected, self.unreported = self.unreported, 0
        if stop_token_id is None and answered + len(sampled.tokens) == len(tokens):
            reason = "error" if sampled.error else "stop" if sampled.ended else reason
        return EngineOutput(
            request_id=self.request.request_id,
            token_ids=tuple(tokens[answered:]),
            finish_reason=reason,
            stop_token_id=stop_token_id,
            cached_tokens=self.request.cached_tokens or 0,
            logprobs=sampled.logprobs[: len(tokens) - answered],
            message=sampled.error if reason == "error" else "",
            injected=injected,
        )

    def _ending(self, token: int) -> FinishReason | None:
        """Whether a token, just collected and not yet appended, is the last one, and why.

        "stop": EOS or a stop id, which does not become part of the answer. Before min_tokens the runner was forbidden
        to draw one; if it did, it counts as text. "length": max_tokens, the model's length or the cache is reached.
        """
        length = len(self.sequence.tokens)
        if token in self.stops and length - self.request.prompt_tokens - self.inserted >= self.sampling.min_tokens:
            return "stop"
        return "length" if length + 1 >= self.limit else None


def refusal(request: EngineRequest, longest: int) -> str:
    """Why it can never run; empty when it can. longest: prompt and answer together."""
    if request.sampling.max_tokens < 1:
        return f"max_tokens is {request.sampling.max_tokens}, expected at least 1"
    if request.prompt_tokens >= longest:
        return f"the prompt has {request.prompt_tokens} tokens, and prompt and answer together may have {longest} here"
    if len(request.generated) >= min(request.sampling.max_tokens, longest - request.prompt_tokens):
        return f"the answer has {len(request.generated)} tokens already, and may have no more"
    return ""
