"""One sequence between its arrival and its end: its lengths, its blocks, and when it has to stop.

Two lengths drive everything: `computed` chases `known`. Both are projected: they count what launched plans will have
done once they are collected, so that a plan can be made while another is still in flight.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from kvasir_runtime.wire import EngineRequest, FinishReason

if TYPE_CHECKING:
    from kvasir_runtime.core.beam_group import BeamGroup

Phase = Literal["waiting", "running", "ended"]


@dataclass(slots=True, kw_only=True, eq=False)
class SequenceState:
    """State of one request inside the scheduler; mutable, never leaves the core.

    tokens: prompt and collected answer. in_flight: samples launched and not collected;
    discarded_samples: others, which bring nothing, since a grammar forced tokens in their places. computed: positions
    whose KV exists once every launched plan is collected. published: full blocks already offered to the prefix index.
    limit: length of tokens at which it ends. hashes: of the full blocks of tokens, as far as they were needed.
    billed_blocks: blocks it took or revived, the share of pinned blocks that it answers for.
    scored: tokens of the prompt whose logprobs are done once every launched plan is collected; the first has none.
    reported: those of which they were collected.
    pending_inject: ids that wait to be inserted behind its tokens. inserted: those that were; untold: no event
    has said so; unsent: the last of tokens, which no plan has brought to the runner.
    beams: the beams of the request, where it is searched for; the sequence is their head or one of them.
    """

    request: EngineRequest
    arrived: float
    limit: int
    root: bytes
    tokens: list[int]
    stops: frozenset[int]
    hashes: list[bytes] = field(default_factory=list)
    phase: Phase = "waiting"
    row: int = -1
    blocks: list[int] = field(default_factory=list)
    computed: int = 0
    published: int = 0
    in_flight: int = 0
    discarded_samples: int = 0
    last_step: int = -1
    preemptions: int = 0
    cached_tokens: int | None = None
    uncached_estimate: int = 0
    billed_blocks: int = 0
    billed_since: float = 0.0
    kv_block_seconds: float = 0.0
    scored: int = 1
    reported: int = 1
    pending_inject: tuple[int, ...] = ()
    inserted: int = 0
    unreported: int = 0
    undelivered: tuple[int, ...] = ()
    beams: "BeamGroup | None" = None

    @property
    def reusable(self) -> int:
        """Tokens at its beginning that need not be computed where the cache has them: not all, as one must go on.

        Logprobs of the prompt come out of computing it, and so does a mean over all of it.
        """
        if self.request.pooling is not None and self.request.pooling.kind == "mean":
            return 0
        if self.request.sampling.prompt_logprobs >= 0 and self.scored < self.prompt_tokens:
            return self.scored - 1
        return len(self.tokens) - 1

    def score(self, start: int, end: int) -> tuple[int, int]:
        """Which tokens of the prompt get their logprobs by computing positions start .. end; they count as done."""
        if self.request.sampling.prompt_logprobs < 0:
            return (0, 0)
        first, last = max(start + 1, self.scored), min(end + 1, self.prompt_tokens)
        if first >= last:
            return (0, 0)
        self.scored = last
        return (first, last)

    def pool(self, start: int, end: int) -> tuple[int, int]:
        """Which of the positions start .. end go into the vector that is asked for."""
        pooling = self.request.pooling
        if pooling is None:
            return (0, 0)
        if pooling.kind == "mean":
            return (start, end)
        return (end - 1, end) if end == len(self.tokens) else (0, 0)

    @property
    def known(self) -> int:
        """Tokens that the runner knows once every launched plan is collected."""
        return len(self.tokens) + self.in_flight

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt alone."""
        return len(self.request.prompt)

    @property
    def generated(self) -> int:
        """Length of the answer, samples in flight included."""
        return len(self.tokens) + self.in_flight - len(self.request.prompt) - self.inserted

    @property
    def remaining(self) -> int:
        """Tokens it may still generate, samples in flight excluded; of a head, all its beams."""
        if self.beams is not None:
            return self.beams.width * max(0, self.limit - self.prompt_tokens - self.beams.search.length)
        if self.request.pooling is not None:
            return 0
        return max(0, self.limit - len(self.tokens) - self.in_flight)

    @property
    def deferred(self) -> bool:
        """Whether it must wait for a token: what is handed in goes behind the last one, and a grammar must know all but
        the last, whose successor the runner draws once it has told the grammar of it.
        """
        return self.in_flight > (
            0 if self.pending_inject else 1 if self.request.sampling.grammar is not None else self.limit
        )

    @property
    def num_rows(self) -> int:
        """Rows that it needs to run."""
        return 1 if self.beams is None else self.beams.width

    def insert(self, longest: int) -> None:
        """Append what was handed in, if nothing is in flight. longest: tokens that it may have in all.

        The answer may become as long as before. What leaves no room for a token is dropped.
        """
        if self.in_flight or not self.pending_inject:
            return
        tokens, self.pending_inject = self.pending_inject, ()
        if len(self.tokens) + len(tokens) >= longest:
            return
        self.tokens += tokens
        self.limit = min(longest, self.limit + len(tokens))
        self.inserted += len(tokens)
        self.unreported += len(tokens)
        self.undelivered += tokens

    def bill(self, blocks: int, now: float) -> None:
        """Change the share of pinned blocks it answers for, and carry the integral over time forward."""
        self.kv_block_seconds += self.billed_blocks * max(0.0, now - self.billed_since)
        self.billed_blocks = blocks
        self.billed_since = now


def new_sequence(request: EngineRequest, *, root: bytes, limit: int, eos: frozenset[int], now: float) -> SequenceState:
    """A sequence that just arrived. limit: most tokens, prompt included, that any sequence may have."""
    sampling = request.sampling
    own = frozenset(sampling.stop_token_ids)
    return SequenceState(
        request=request,
        arrived=now,
        # A prompt that is only pooled ends with its computation, not at a length.
        limit=min(limit, len(request.prompt) + sampling.max_tokens) if request.pooling is None else limit + 1,
        root=root,
        tokens=list(request.prompt),
        stops=own if sampling.ignore_eos else own | eos,
        billed_since=now,
    )


def refusal(request: EngineRequest, limit: int, num_rows: int) -> str:
    """Why a request can never run, as a sentence; empty when it can. num_rows: sequences that can run at a time."""
    if request.beam is not None and not 1 <= request.beam.width <= num_rows:
        return f"{request.beam.width} beams are wanted, and {num_rows} sequences can run here at a time"
    if not request.prompt:
        return "the prompt is empty"
    if request.pooling is not None:
        return _pooling_refusal(request, limit)
    if request.sampling.max_tokens < 1:
        return f"max_tokens is {request.sampling.max_tokens}, expected at least 1"
    if len(request.prompt) >= limit:
        return f"the prompt has {len(request.prompt)} tokens, and prompt and answer together may have {limit} here"
    return ""


def _pooling_refusal(request: EngineRequest, limit: int) -> str:
    """As refusal(), where no token follows. The last token is computed too, so the cache must have a place for it."""
    if len(request.prompt) > limit:
        return f"the prompt has {len(request.prompt)} tokens, and may have {limit} here"
    return ""


def ending(sequence: SequenceState, token: int) -> FinishReason | None:
    """Whether a token, just collected and not yet appended, is the sequence's last one, and why.

    "stop": EOS or a stop id, which does not become part of the answer. Before min_tokens the runner was forbidden to
    draw one; if it did, it counts as text. "length": max_tokens, the model's length or the cache is reached.
    """
    answered = len(sequence.tokens) - len(sequence.request.prompt) - sequence.inserted
    if token in sequence.stops and answered >= sequence.request.sampling.min_tokens:
        return "stop"
    return "length" if len(sequence.tokens) + 1 >= sequence.limit else None
