"""An answer that continues while its tools run, and into which their results are inserted.

The engine gets the block of a result between two tokens, not within a call or within reasoning. An answer whose turn
ends while results are missing waits for them, within a bound, and continues with its next turn: to the engine that is a
request of its own, whose beginning is in its cache.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import msgspec

from kvasir_api import openai_errors
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.generation_request import GenerationRequest
from kvasir_runtime.frontend.output_processor import OutputDelta
from kvasir_runtime.frontend.parsing.parts import CallArguments, CallBegin, CallBroken, CallEnd, Content, Part, merged
from kvasir_runtime.frontend.tool_results import ToolResult, ToolResultBlock
from kvasir_runtime.server.api.serializer import RequestUsage
from kvasir_runtime.server.output_collector import OutputCollector, ServingContext
from kvasir_runtime.wire import EngineOutput, FinishReason

MARGIN: Final = 16
"""Tokens that the engine may write before a block reaches it, and some that are left for the answer after it."""


class ToolResultCollector(OutputCollector):
    """One choice. Its output is that of any stream; the results that are inserted are no part of it."""

    def __init__(self, request: GenerationRequest, context: ServingContext, arrived: float) -> None:
        super().__init__(request, context, arrived)
        assert request.tool_results is not None
        self._renderer = request.tool_results
        self._choice = self.choices[0]
        self._context_ids = list(request.requests[0].prompt)  # every id that the engine has, as far as reported
        self._missing: dict[str, str] = {}  # names of functions by the ids of calls without a result
        self._begun: list[Part] = []
        self._num_rendering = 0
        self._pending: deque[ToolResultBlock] = deque()
        self._injected: deque[ToolResultBlock] = deque()
        self._turn_ended_at: float | None = None
        self._num_turns = 0
        self._num_injected_tokens = 0

    async def add_results(self, results: Sequence[ToolResult]) -> tuple[str, ...]:
        """Take results; the ids of their calls. Raises Refused: unknown calls, too much for the context, its end."""
        names: dict[str, str] = {}
        for place, result in enumerate(results):
            if result.tool_call_id not in self._missing or result.tool_call_id in names:
                message = f"`{result.tool_call_id}` is no call of this answer that waits for its result."
                param = f"results[{place}].tool_call_id"
                raise Refused(openai_errors.invalid(message, param=param, code="invalid_value"))
            names[result.tool_call_id] = self._missing[result.tool_call_id]
        for call_id in names:
            del self._missing[call_id]
        self._num_rendering += 1
        try:
            block = await asyncio.to_thread(self._renderer.block, results, names)
            self._check_room(block)
        except Refused:
            self._missing |= names
            raise
        finally:
            self._num_rendering -= 1
        self._pending.append(block)
        self.queue.wake()
        return block.call_ids

    def _check_room(self, block: ToolResultBlock) -> None:
        if not self._choice.open:
            raise Refused(openai_errors.answer_not_running(self.request.answer_id))
        pending = sum(len(one.token_ids) for one in (*self._pending, *self._injected))
        length, limit = len(self._context_ids) + pending + len(block.token_ids), self._renderer.max_context
        if length + MARGIN > limit:
            message = f"With the results prompt and answer have {length} tokens, and the model takes {limit}."
            raise Refused(openai_errors.invalid(message, param="results", code="context_length_exceeded"))

    @property
    def _waits_for_results(self) -> bool:
        """Results are missing, or the model has not read them."""
        return bool(self._missing or self._num_rendering or self._pending or self._injected)

    async def deltas(self) -> list[OutputDelta] | None:
        """As of any request, and the end of an answer whose results do not come."""
        found = await super().deltas()
        if self._pending:
            return [*(found or ()), *self._insert()]
        if self._turn_ended_at is None or self._clock() < self._turn_ended_at + self._context.tool_result_timeout_s:
            return found
        return [*(found or ()), self._closed("stop")]

    def usage(self) -> RequestUsage:
        """The inserted results count as prompt tokens."""
        usage = super().usage()
        return replace(usage, prompt_tokens=usage.prompt_tokens + self._num_injected_tokens)

    def _accept(self, index: int, event: EngineOutput) -> OutputDelta:
        count = event.injected
        while count > 0 and self._injected:
            block = self._injected.popleft()
            count -= len(block.token_ids)
            self._take_in(block)
        self._context_ids += event.token_ids
        delta = super()._accept(index, event)
        delta.parts = self._complete(delta.parts)
        if delta.reason == "stop" and not self._choice.stopped and self._waits_for_results:
            self._pending.extendleft(reversed(self._injected))  # the model ended before it read them
            self._injected.clear()
            self._turn_ended_at = self._clock()
            self._choice.reopen()
            delta.reason = None
        delta.called = bool(self._missing)
        return delta

    def _complete(self, parts: list[Part]) -> list[Part]:
        """Calls when they are complete, in one piece, since they can be made then; what is none is content."""
        complete: list[Part] = []
        for part in parts:
            match part:
                case CallBegin() | CallArguments():
                    self._begun.append(part)
                case CallEnd():
                    complete += [*self._begun, part]
                    self._missing |= {one.call_id: one.name for one in self._begun if isinstance(one, CallBegin)}
                    self._begun.clear()
                case CallBroken(_, raw):
                    complete.append(Content(raw))
                    self._begun.clear()
                case _:
                    complete.append(part)
        return merged(complete)

    def _insert(self) -> list[OutputDelta]:
        """Send pending results to the engine, if the model is neither within a call nor within reasoning."""
        choice = self._choice
        if self._turn_ended_at is not None:
            return self._next_turn()
        if choice.open and not choice.busy:
            while self._pending:
                block = self._pending.popleft()
                self._injected.append(block)
                self._client.inject(choice.request_id, block.token_ids)
        return []

    def _next_turn(self) -> list[OutputDelta]:
        """The whole context becomes a prompt. There is no turn where max_tokens are used up."""
        choice, request = self._choice, self.request.requests[0]
        while self._pending:
            self._take_in(self._pending.popleft())
        room = self._renderer.max_context - len(self._context_ids)
        left = min(request.sampling.max_tokens - choice.num_tokens, room)
        if left < 1:
            return [self._closed("length")]
        self._turn_ended_at = None
        self._num_turns += 1
        choice.request_id = f"{self.request.answer_id}-0-{self._num_turns}"
        follower = msgspec.structs.replace(
            request,
            request_id=choice.request_id,
            prompt=tuple(self._context_ids),
            sampling=msgspec.structs.replace(request.sampling, max_tokens=left),
            route_hashes=(),
        )
        self._submit_again(0, follower)
        return []

    def _take_in(self, block: ToolResultBlock) -> None:
        self._context_ids += block.token_ids
        self._num_injected_tokens += len(block.token_ids)
        self._choice.interrupted(block.text)

    def _closed(self, reason: FinishReason) -> OutputDelta:
        """The end without another turn: the results did not come, or there is no room for an answer to them."""
        self._choice.open = False
        self._turn_ended_at = None
        self._finish(0, reason, self._clock())
        return OutputDelta(
            index=0, reason=reason, parts=self._complete(self._choice.parts()), called=bool(self._missing)
        )
