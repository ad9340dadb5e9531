"""How an answer is written: the interface between the streams, which decide when, and the APIs, which decide how.

streaming.py turns the engine's events into output deltas and a Serializer turns these into bytes; each folder of api/
implements one in its serialize.py. A Serializer holds the state of one answer; it uses no socket and no clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kvasir_api.openai_errors import ApiError
from kvasir_runtime.frontend.generation_request import GenerationRequest
from kvasir_runtime.frontend.output_processor import OutputDelta
from kvasir_runtime.frontend.parsing.parts import Content, Part


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestUsage:
    """Counts and times of a request, at its end or so far. Times are -1 where it did not come so far.

    reasoning_tokens: part of the completion's. cached_tokens: of the prompts, found in the prefix cache.
    total_s: since its arrival. queue_s: in the engine's queue. first_token_s: from its arrival to its first token.
    prompt_s: from its first chunk to its first token. answer_s: from there to the last.
    """

    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    cached_tokens: int
    total_s: float
    queue_s: float
    first_token_s: float
    prompt_s: float
    answer_s: float


def answer_parts(delta: OutputDelta, request: GenerationRequest) -> Sequence[Part]:
    """The parts of a piece; of a prompt that was no chat all is text."""
    if request.chat:
        return delta.parts
    return [Content(delta.text)] if delta.text else []


class Serializer(Protocol):
    """Writes one answer, either as a stream (begin, pieces, end or broken) or whole."""

    stream_type: bytes
    """The content type of a stream; a whole answer is always one JSON document."""
    keep_alive: bytes
    """A sign of life within a stream."""

    def begin(self, so_far: RequestUsage, /) -> bytes:
        """What comes before the first piece; what was counted until then."""

    def deltas(self, deltas: Sequence[OutputDelta], so_far: RequestUsage | None, /) -> bytes:
        """What one wake-up brought, in order; what was counted until then, where that is requested."""

    def end(self, usage: RequestUsage) -> bytes:
        """The end of a stream without an error."""

    def broken(self, error: ApiError) -> bytes:
        """The end of a stream that failed after begin()."""

    def whole(self, deltas: Sequence[OutputDelta], usage: RequestUsage) -> bytes:
        """The document of an answer that is not streamed. pieces: whole choices, in the order of their index."""

    def refusal(self, error: ApiError) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers where nothing was sent yet."""
