"""What the scheduler keeps of one request between its arrival and its end, whatever kind of request it is."""

from dataclasses import dataclass, field
from typing import Final, Literal

from kvasir_api.openai_errors import MODEL_OUTPUT_INVALID
from kvasir_runtime.wire import EngineOutput, EngineRequest

AGEING_S: Final = 10.0
"""Seconds of waiting that make up for one priority."""
DEFAULT_TTFT_S: Final = 10.0
"""Deadline of a first token where a request has none: those with a later one come after it."""
Phase = Literal["waiting", "running", "ended"]
_INVALID: Final = (
    "the model's output is not finite (NaN or infinity): numbers overflowed, which --dtype float32 avoids,"
    " or weights or device are damaged"
)


@dataclass(slots=True, eq=False)
class RequestState:
    """Mutable; never leaves the core. A sequence refers to the request that it belongs to.

    number: of arrivals before it. queued_at: when it came to wait last, by its arrival or a preemption. due_at: by when
    its first token should come. seniority: the smaller, the later it is preempted and the sooner its prompt is
    computed; its arrival, moved by its priority. uncounted: of `remaining`, as tenants' shares were counted last.
    rows: of the runner, held while it runs. cached_tokens: of the prompt, found in the prefix cache at first admission;
    None before. uncached_estimate: tokens that must be computed when it is admitted, as far as is known.
    shared_tokens: of these, what others that waited or ran when it came were about to compute.
    predicted_s: from predicted_at to its first token, while that is to be compared with what comes, else 0. saved_s: by
    the queue's count of what requests that left it saved to others, as of predicted_at.
    data_rank: that has its blocks, once it has some.
    preemptions: how often it lost its rows. billed_blocks: blocks that it took or revived, its share of the pinned
    blocks; kv_block_seconds: their integral.
    """

    request: EngineRequest
    billed_since: float
    number: int = 0
    request_id: str = field(init=False)
    arrived_at: float = field(init=False)
    queued_at: float = field(init=False)
    due_at: float = field(init=False)
    seniority: float = field(init=False)
    uncounted: int = 0
    phase: Phase = "waiting"
    rows: list[int] = field(default_factory=list)
    data_rank: int = 0
    cached_tokens: int | None = None
    uncached_estimate: int = 0
    shared_tokens: int = 0
    predicted_s: float = 0.0
    predicted_at: float = 0.0
    saved_s: float = 0.0
    preemptions: int = 0
    billed_blocks: int = 0
    kv_block_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.request_id = self.request.request_id
        self.arrived_at = self.queued_at = self.billed_since
        self.due_at = self.arrived_at + (self.request.ttft_s or DEFAULT_TTFT_S)
        self.seniority = self.arrived_at + AGEING_S * self.request.priority

    @property
    def for_peer(self) -> bool:
        """Whether its prompt alone is computed, for another replica: the token that is drawn is no answer."""
        return self.request.for_peer

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt alone."""
        return self.request.prompt_tokens

    @property
    def given_tokens(self) -> int:
        """Length of the prompt and of what another engine generated behind it."""
        return self.request.prompt_tokens + len(self.request.generated)

    def invalid_output(self, answer_id: str = "") -> EngineOutput:
        """The last output where the model's output is not finite. answer_id: by default that of the request."""
        return self.failed_output(_INVALID, answer_id, code=MODEL_OUTPUT_INVALID)

    def failed_output(self, message: str, answer_id: str = "", *, code: str = "") -> EngineOutput:
        """The last output where the request cannot go on. answer_id: by default that of the request."""
        return EngineOutput(
            request_id=answer_id or self.request_id,
            finish_reason="error",
            cached_tokens=self.cached_tokens or 0,
            message=message,
            code=code,
        )

    def bill(self, blocks: int, now: float) -> None:
        """Change its share of the pinned blocks, and carry the integral over time forward."""
        self.kv_block_seconds += self.billed_blocks * max(0.0, now - self.billed_since)
        self.billed_blocks = blocks
        self.billed_since = now
