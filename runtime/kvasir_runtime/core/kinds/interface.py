"""What the scheduler requires of every kind of request. A new kind is a class here beside and a line in `factory`."""

from collections.abc import Sequence
from typing import Protocol

from kvasir_runtime.core.plan import SampledTokens
from kvasir_runtime.core.plan_builder import LaunchedChunk, PlanBuilder
from kvasir_runtime.core.request_state import RequestState
from kvasir_runtime.core.sequence import SequenceState
from kvasir_runtime.wire import EngineOutput, Logprobs, SamplingConfig


class RequestKind(Protocol):
    """One request of some kind, between submit and its last output.

    It waits with its sequence. `prepare` gives what its admission takes. While it runs, each plan calls `need` and then
    `advance`, each collected chunk `accept`; an output with a finish reason ends it. `release` gives everything back,
    at its end or for a preemption.
    """

    @property
    def request(self) -> RequestState:
        """What every kind has."""

    @property
    def sequence(self) -> SequenceState:
        """The sequence that arrives, waits and is admitted."""

    @property
    def sampling(self) -> SamplingConfig:
        """What the runner draws by."""

    @property
    def num_rows(self) -> int:
        """Rows that it takes to run."""

    @property
    def reusable(self) -> int:
        """Tokens at the beginning that need not be computed where the cache has them; at least one is computed."""

    @property
    def remaining(self) -> int:
        """Tokens that it may still generate, samples in flight excluded."""

    @property
    def is_ending(self) -> bool:
        """Whether what is in flight ends it: its blocks come free without a preemption."""

    def prepare(self) -> int:
        """Before admission, with nothing in flight: the blocks with which it can go on, cached ones included."""

    def need(self, budget: int) -> int | None:
        """Blocks to take before it can compute as much of budget as it can now, at most 0 for none; None where it has
        nothing to compute before something in flight is collected."""

    def advance(self, builder: PlanBuilder, blocks: list[int]) -> None:
        """Write its chunks into a plan, within the budget that is left. blocks: as many as it needed."""

    def accept(
        self,
        chunk: LaunchedChunk,
        sampled: SampledTokens | None,
        scored: tuple[Logprobs, ...],
        vector: bytes,
        now: float,
    ) -> Sequence[EngineOutput]:
        """Take in what one of its chunks gave. A finish reason on the last output ends the request."""

    def release(self) -> Sequence[SequenceState]:
        """Rows are lost: the sequences whose blocks are to be given back. It can be admitted again."""

    def inject(self, token_ids: tuple[int, ...]) -> None:
        """Take ids that come from outside; ignored by kinds without an answer that goes on."""

    def drop_in_flight(self) -> None:
        """No launched plan is collected any more."""
