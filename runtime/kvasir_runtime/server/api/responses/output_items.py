"""The output of one response as it grows: items from the parts of the answer, and an event for each change.

Owned by the serializer of that response. Pure; it does not number the events, since others come before and after.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from kvasir_runtime.frontend.logprobs import TokenLogprob
from kvasir_runtime.frontend.parsing.parts import (
    CallArguments,
    CallBegin,
    CallBroken,
    CallCut,
    CallEnd,
    Content,
    JoinedAnswer,
    Part,
    Reasoning,
)

Document = dict[str, Any]
Event = tuple[str, Document]


def parts_of(joined: JoinedAnswer) -> list[Part]:
    """A whole answer in the order of a response: reasoning, text, calls."""
    parts: list[Part] = [Reasoning(joined.reasoning)] if joined.reasoning else []
    parts += [Content(joined.content)] if joined.content or not joined.calls else []
    for index, call in enumerate(joined.calls):
        end = CallCut(index) if call.cut else CallEnd(index)
        parts += [CallBegin(index, call.call_id, call.name), CallArguments(index, call.arguments), end]
    return parts


class OutputItems:
    """seed: makes the ids of the items unique. One item is open at a time."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._open: Document | None = None
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self.items: list[Document] = []
        """Those that are closed, and the open one last, without its text."""

    def take(self, part: Part, logprobs: Sequence[TokenLogprob]) -> Iterator[Event]:
        """The events of one more part. logprobs: of the tokens of a content."""
        match part:
            case Content(text):
                yield from self._begin("message", {"role": "assistant", "content": []})
                self._logprobs += logprobs
                yield from self._grow("response.output_text", text, {"content_index": 0, "logprobs": logprobs})
            case Reasoning(text):
                yield from self._begin("reasoning", {"summary": [], "content": []})
                yield from self._grow("response.reasoning_text", text, {"content_index": 0})
            case CallBegin(_, call_id, name):
                yield from self.close("completed")
                yield from self._begin("function_call", {"call_id": call_id, "name": name, "arguments": ""})
            case CallArguments(_, text):
                yield from self._grow("response.function_call_arguments", text, {})
            case CallEnd():
                yield from self.close("completed")
            case CallBroken() | CallCut():
                yield from self.close("incomplete")  # what was sent of it stays: a stream cannot take it back

    def close(self, status: str) -> Iterator[Event]:
        """End the open item, if there is one."""
        item, self._open = self._open, None
        if item is None:
            return
        text, place = "".join(self._texts), self._place(item)
        self._texts = []
        if item["type"] == "function_call":
            done = item | {"arguments": text, "status": status}
            told = {"arguments": text, "name": item["name"]}
            yield "response.function_call_arguments.done", place | told
        else:
            part = self._part(item, text)
            done = item | {"content": [part], "status": status}
            yield from self._closed_part(item, text, part)
        self._logprobs = []
        self.items[-1] = done
        yield "response.output_item.done", {"output_index": len(self.items) - 1, "item": done}

    def _begin(self, kind: str, fields: Document) -> Iterator[Event]:
        """Open an item of a kind, unless such a one is open."""
        if self._open is not None and self._open["type"] == kind:
            return
        yield from self.close("completed")
        prefix = {"message": "msg", "reasoning": "rs", "function_call": "fc"}[kind]
        item_id = f"{prefix}_{self._seed}{len(self.items):02x}"
        item = {"type": kind, "id": item_id, "status": "in_progress", **fields}
        self._open = item
        self.items.append(item)
        yield "response.output_item.added", {"output_index": len(self.items) - 1, "item": item}
        if kind != "function_call":
            part = self._part(item, "")
            yield "response.content_part.added", self._place(item) | {"content_index": 0, "part": part}

    def _grow(self, event: str, text: str, fields: Document) -> Iterator[Event]:
        assert self._open is not None
        self._texts.append(text)
        yield f"{event}.delta", self._place(self._open) | fields | {"delta": text}

    def _closed_part(self, item: Document, text: str, part: Document) -> Iterator[Event]:
        place = self._place(item) | {"content_index": 0}
        if item["type"] == "reasoning":
            yield "response.reasoning_text.done", place | {"text": text}
        else:
            yield "response.output_text.done", place | {"text": text, "logprobs": self._logprobs}
        yield "response.content_part.done", place | {"part": part}

    def _place(self, item: Document) -> Document:
        return {"item_id": item["id"], "output_index": len(self.items) - 1}

    def _part(self, item: Document, text: str) -> Document:
        if item["type"] == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": self._logprobs}
