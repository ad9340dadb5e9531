"""Turns the engine's events of one sequence into the text of one choice: detokenized, cut at stop strings, with reason.

Pure but for the tokenizer it is given; driven by the streams once per event, so it is on the per-token path.
"""

from kvasir_runtime.server.detokenize import Decode, Detokenizer
from kvasir_runtime.server.prepare import Job
from kvasir_runtime.server.stops import StopMatcher
from kvasir_runtime.wire import Event, FinishReason, Request


class Choice:
    """One choice. stopped says that a stop string ended it, so the engine has to be told; open, that it goes on."""

    __slots__ = (
        "_detokenizer",
        "_min_tokens",
        "_stops",
        "cached_tokens",
        "num_tokens",
        "open",
        "request_id",
        "stopped",
    )

    def __init__(self, request: Request, job: Job, decode: Decode) -> None:
        before = () if job.chat else request.prompt[-16:]
        self.request_id = request.request_id
        self._detokenizer = Detokenizer(decode, before)
        self._stops = StopMatcher(job.stops, include=job.include_stop) if job.stops else None
        self._min_tokens = request.sampling.min_tokens
        self.num_tokens = 0
        self.cached_tokens = 0
        self.open = True
        self.stopped = False

    def accept(self, event: Event) -> tuple[str, FinishReason | None]:
        """The text that an event adds and, on the last, why it ended. An event after the end adds nothing."""
        if not self.open:
            return "", None
        self.cached_tokens = event.cached_tokens
        reason = event.finish_reason
        if self._stops is None:
            self.num_tokens += len(event.token_ids)
            text = self._detokenizer.push(event.token_ids)
        else:
            text = self._match(event.token_ids, self._stops)
            if self._stops.matched is not None:
                return text, "stop"
        if reason is not None:
            self.open = False
            self.num_tokens += event.stop_token_id is not None
            rest, stopped = self._rest()
            text += rest
            reason = "stop" if stopped else reason
        return text, reason

    def _match(self, token_ids: tuple[int, ...], stops: StopMatcher) -> str:
        """Token by token, so that what follows a stop string in the same step is neither counted nor sent."""
        parts = []
        for token_id in token_ids:
            self.num_tokens += 1
            piece = self._detokenizer.push((token_id,))
            if self.num_tokens < self._min_tokens:
                parts.append(piece)  # min_tokens holds against stop strings too
                continue
            parts.append(stops.push(piece))
            if stops.matched is not None:
                self.open, self.stopped = False, True
                break
        return "".join(parts)

    def _rest(self) -> tuple[str, bool]:
        """What detokenizer and matcher still hold back, and whether a stop string is complete with it."""
        rest = self._detokenizer.flush()
        if self._stops is None:
            return rest, False
        text = self._stops.push(rest)
        return text + self._stops.flush(), self._stops.matched is not None
