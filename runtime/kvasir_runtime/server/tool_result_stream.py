"""A streamed answer that goes on while its calls are made, and into which their results are handed.

The engine is given the block of a result between two tokens, not within a call or within thoughts. An answer whose turn
ends while results are missing waits for them, within a bound, and goes on with its next turn: to the engine that is a
request of its own, whose beginning its cache holds.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from kvasir_api import openai_errors
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.output_processor import OutputProcessor
from kvasir_runtime.frontend.parsing.parts import CallArguments, CallBegin, CallBroken, CallEnd, Content, Part, merged
from kvasir_runtime.frontend.tool_results import ToolResult, ToolResultBlock
from kvasir_runtime.server.api.serializer import OutputDelta, RequestTotals
from kvasir_runtime.server.streaming import StreamedResponse
from kvasir_runtime.wire import EngineOutput, FinishReason

MAX_WAIT_S: Final = 600.0
"""How long an answer whose turn has ended waits for the next result."""
MARGIN: Final = 16
"""Tokens that the engine may write before a block reaches it, and some that are left for the answer after it."""


class ToolResultStream(StreamedResponse):
    """One choice. It is written as any stream; what is handed in is no part of it."""

    def __init__(self, *args: Any, max_wait_s: float = MAX_WAIT_S, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        assert self.job.tool_results is not None
        self._renderer = self.job.tool_results
        self._known = list(self.job.requests[0].prompt)  # every id that the engine has of it, as far as we were told
        self._outstanding: dict[str, str] = {}  # names of functions by the ids of calls without a result
        self._begun: list[Part] = []
        self._num_rendering = 0
        self._waiting: deque[ToolResultBlock] = deque()
        self._sent: deque[ToolResultBlock] = deque()
        self._ended_at: float | None = None
        self._max_wait_s = max_wait_s
        self._num_turns = 0
        self._num_injected = 0

    async def hand_in(self, results: Sequence[ToolResult]) -> tuple[str, ...]:
        """Take results; the ids of their calls. Raises Refused: unknown calls, too much for the context, its end."""
        names: dict[str, str] = {}
        for place, result in enumerate(results):
            if result.tool_call_id not in self._outstanding or result.tool_call_id in names:
                message = f"`{result.tool_call_id}` is no call of this answer that waits for its result."
                param = f"results[{place}].tool_call_id"
                raise Refused(openai_errors.invalid(message, param=param, code="invalid_value"))
            names[result.tool_call_id] = self._outstanding[result.tool_call_id]
        for call_id in names:
            del self._outstanding[call_id]
        self._num_rendering += 1
        try:
            block = await asyncio.to_thread(self._renderer.block, results, names)
            self._check_room(block)
        except Refused:
            self._outstanding |= names
            raise
        finally:
            self._num_rendering -= 1
        self._waiting.append(block)
        self._queue.wake()
        return block.call_ids

    def _check_room(self, block: ToolResultBlock) -> None:
        if not self._choices[0].open:
            raise Refused(openai_errors.answer_not_running(self.job.answer_id))
        pending = sum(len(one.token_ids) for one in (*self._waiting, *self._sent))
        length, limit = len(self._known) + pending + len(block.token_ids), self._renderer.max_context
        if length + MARGIN > limit:
            message = f"With the results prompt and answer have {length} tokens, and the model takes {limit}."
            raise Refused(openai_errors.invalid(message, param="results", code="context_length_exceeded"))

    @property
    def _misses(self) -> bool:
        """Results are missing, or the model has not read them."""
        return bool(self._outstanding or self._num_rendering or self._waiting or self._sent)

    async def _pieces(self) -> list[OutputDelta] | None:
        pieces = await super()._pieces()
        if self._waiting:
            return [*(pieces or ()), *self._hand_on(self._choices[0])]
        if self._ended_at is None or self._clock() < self._ended_at + self._max_wait_s:
            return pieces
        return [*(pieces or ()), self._closed("stop")]

    def _before(self, index: int, event: EngineOutput) -> None:
        count = event.injected
        while count > 0 and self._sent:
            block = self._sent.popleft()
            count -= len(block.token_ids)
            self._take_in(self._choices[index], block)
        self._known += event.token_ids

    def _told(self, parts: list[Part]) -> list[Part]:
        """Calls when they are complete, in one piece, since they can be made then; what is none is content."""
        told: list[Part] = []
        for part in parts:
            match part:
                case CallBegin() | CallArguments():
                    self._begun.append(part)
                case CallEnd():
                    told += [*self._begun, part]
                    self._outstanding |= {one.call_id: one.name for one in self._begun if isinstance(one, CallBegin)}
                    self._begun.clear()
                case CallBroken(_, raw):
                    told.append(Content(raw))
                    self._begun.clear()
                case _:
                    told.append(part)
        return merged(told)

    def _goes_on(self, choice: OutputProcessor, reason: FinishReason | None, /) -> bool:
        if reason != "stop" or choice.stopped or not self._misses:
            return False
        self._waiting.extendleft(reversed(self._sent))  # the model ended before it read them
        self._sent.clear()
        self._ended_at = self._clock()
        choice.reopen()
        return True

    def _calls(self, _choice: OutputProcessor, /) -> bool:
        return bool(self._outstanding)

    def _ending(self) -> RequestTotals:
        """What was handed in was read, as the prompt was."""
        ending = super()._ending()
        return replace(ending, prompt_tokens=ending.prompt_tokens + self._num_injected)

    def _hand_on(self, choice: OutputProcessor) -> list[OutputDelta]:
        """Give what waits to the engine, if the model is not in the middle of something."""
        if self._ended_at is not None:
            return self._next_turn(choice)
        if choice.open and not choice.busy:
            while self._waiting:
                block = self._waiting.popleft()
                self._sent.append(block)
                self._client.inject(choice.request_id, block.token_ids)
        return []

    def _next_turn(self, choice: OutputProcessor) -> list[OutputDelta]:
        """All that was said and handed in becomes a prompt. No turn where max_tokens are used up."""
        request = self.job.requests[0]
        while self._waiting:
            self._take_in(choice, self._waiting.popleft())
        room = self._renderer.max_context - len(self._known)
        left = min(request.sampling.max_tokens - choice.num_tokens, room)
        if left < 1:
            return [self._closed("length")]
        self._ended_at = None
        self._num_turns += 1
        choice.request_id = f"{self.job.answer_id}-0-{self._num_turns}"
        follower = msgspec.structs.replace(
            request,
            request_id=choice.request_id,
            prompt=tuple(self._known),
            sampling=msgspec.structs.replace(request.sampling, max_tokens=left),
            route_hashes=(),
        )
        self._client.submit([follower], self._queue)
        return []

    def _take_in(self, choice: OutputProcessor, block: ToolResultBlock) -> None:
        self._known += block.token_ids
        self._num_injected += len(block.token_ids)
        choice.interrupted(block.text)

    def _closed(self, reason: FinishReason) -> OutputDelta:
        """It ends without another turn: nobody brought the results, or there is no room for an answer to them."""
        choice = self._choices[0]
        choice.open = False
        self._num_open = 0
        self._ended_at = None
        self._meter.ended(self._ended(0, reason, self._clock()))
        self.summary.reason = reason
        return OutputDelta(index=0, reason=reason, parts=self._told(choice.parts()), called=bool(self._outstanding))
