"""Turns the engine's events of one sequence into the text of one choice: detokenized, cut at stop strings, with reason.

Pure but for the tokenizer it is given; driven by the streams once per event, so it is on the per-token path. What goes
beside a text, logprobs and token ids, comes with each delta; it is kept only where it was requested.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf

from kvasir_runtime.frontend.detokenizer import REPLACEMENT, Decode, Decoding
from kvasir_runtime.frontend.generation_request import GenerationRequest
from kvasir_runtime.frontend.logprobs import OutputToken
from kvasir_runtime.frontend.parsing import answer_parser
from kvasir_runtime.frontend.parsing.answer_parser import AnswerParser
from kvasir_runtime.frontend.parsing.parts import Content, Part, Reasoning
from kvasir_runtime.frontend.stop_strings import StopMatcher
from kvasir_runtime.frontend.tokenizer import Tokenizer
from kvasir_runtime.wire import EngineOutput, EngineRequest, FinishReason, Logprobs


@dataclass(slots=True, kw_only=True)
class OutputDelta:
    """What is sent of one choice at a time. tokens, token_ids: empty where they were not requested.

    stopped_by: the stop string or the requested stop id that ended it. text: as the model wrote it. parts: of a chat,
    what was found in that text, in order: content, reasoning, calls. called: calls were completed, so reason "stop"
    means that the client should make them."""

    index: int
    text: str = ""
    reason: FinishReason | None = None
    tokens: list[OutputToken] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    prompt_logprobs: Sequence[Logprobs] = ()
    stopped_by: str | int | None = None
    parts: list[Part] = field(default_factory=list)
    called: bool = False


def output_processors(request: GenerationRequest, tokenizer: Tokenizer) -> "list[OutputProcessor]":
    """One processor for each choice that is sampled, in the order of the engine's requests."""
    decoding = tokenizer.decoding(_hidden(request, tokenizer))
    return [
        OutputProcessor(
            engine_request,
            request,
            decoding,
            index=index,
            echo=request.echoes[index // request.num_drawn] if request.echoes else None,
        )
        for index, engine_request in enumerate(request.requests)
    ]


def _hidden(request: GenerationRequest, tokenizer: Tokenizer) -> frozenset[int]:
    """Special tokens, unless they are wanted, but for the marks that the readers of parts look for."""
    if request.special:
        return frozenset()
    marks = () if request.parser is None else answer_parser.marks(request.parser.tools, request.parser.reasoning)
    specials = tokenizer.special_tokens.items()
    return frozenset(token_id for token_id, name in specials if not any(name in mark for mark in marks))


def best_choices(request: GenerationRequest, choices: "Sequence[OutputProcessor]") -> list[int]:
    """Indices of the choices that are shown: of each prompt the most likely of those sampled, most likely first."""
    if request.num_drawn == request.num_choices:
        return [index for index, choice in enumerate(choices) if not choice.is_missing]
    found = []
    for start in range(0, len(choices), request.num_drawn):
        best = sorted(range(start, start + request.num_drawn), key=lambda index: -choices[index].cumulative)
        found += best[: request.num_choices]
    return found


class OutputProcessor:
    """One choice. stopped: a stop string ended it, so the engine must be told to end it. open: it is not ended.

    cumulative: logarithm of the probability of the answer. prompt_logprobs: as the engine gave them. reasoning_tokens:
    up to the end of the reasoning. is_missing: a beam search found fewer answers.
    """

    __slots__ = (
        "_decoding",
        "_detokenized",
        "_detokenizer",
        "_ids",
        "_index",
        "_lead",
        "_min_tokens",
        "_parser",
        "_parts",
        "_prompt",
        "_request",
        "_said",
        "_sent",
        "_stop_id",
        "_stops",
        "cached_tokens",
        "cumulative",
        "is_missing",
        "num_tokens",
        "open",
        "preemptions",
        "prompt_logprobs",
        "reasoning_tokens",
        "request_id",
        "stopped",
    )

    def __init__(
        self,
        engine_request: EngineRequest,
        request: GenerationRequest,
        decoding: Decoding,
        *,
        index: int = 0,
        echo: str | None = None,
    ) -> None:
        before = engine_request.prompt[-16:] if request.continues else ()
        self.request_id = engine_request.request_id
        self._index = index
        self._request = request
        self._prompt = engine_request.prompt
        self._decoding = decoding
        self._detokenizer = decoding.detokenizer(before)
        self._stops = StopMatcher(request.stops, include=request.include_stop) if request.stops else None
        self._stop_id: int | None = None
        self._min_tokens = engine_request.sampling.min_tokens
        self._lead = echo
        self._said: deque[OutputToken] = deque()
        self._ids: list[int] = []
        self._parts: list[Part] = []
        self._parser = None if request.parser is None else AnswerParser(request.parser, _call_ids(request, index))
        self._detokenized = self._sent = 0
        self.prompt_logprobs: list[Logprobs] = []
        self.cumulative = 0.0
        self.num_tokens = 0
        self.reasoning_tokens = 0
        self.cached_tokens = 0
        self.preemptions = 0
        self.open = True
        self.stopped = False
        self.is_missing = False

    def accept(self, event: EngineOutput) -> OutputDelta:
        """What an output of the engine adds, with the reason on the last. An output after the end adds nothing."""
        if event.score == -inf:
            self.open, self.is_missing = False, True
        if not self.open:
            return OutputDelta(index=self._index)
        text, reason = self._accepted(event)
        parts = self.parts()
        if not (text or parts or reason is not None):
            return OutputDelta(index=self._index)
        return OutputDelta(
            index=self._index,
            text=text,
            reason=reason,
            tokens=self._released_tokens(),
            token_ids=self._new_ids(),
            stopped_by=self._stop_id if self._stops is None or self._stops.matched is None else self._stops.matched,
            parts=parts,
            called=self._parser is not None and self._parser.called,
        )

    def _accepted(self, event: EngineOutput) -> tuple[str, FinishReason | None]:
        self.cached_tokens, self.preemptions = event.cached_tokens, event.preemptions
        self.prompt_logprobs += event.prompt_logprobs
        lead = ""
        if event.token_ids or event.finish_reason is not None:
            lead = self._begin()
            if self._request.only_prompt:
                self.open = False
                return self._released(lead), "length"
        text, reason = self._answer(event)
        text = self._released(lead + text, ended=reason is not None)
        if self._parser is not None and self._parser.full and reason is None:
            self.open, self.stopped, reason = False, True, "stop"
        return text, reason

    @property
    def busy(self) -> bool:
        """It is within reasoning or a call, where nothing can be inserted."""
        return self._parser is not None and self._parser.busy

    def reopen(self) -> None:
        """Its turn is over, and it will have another one."""
        self.open = True

    def interrupted(self, block: str) -> None:
        """What comes next is written after a block that is not its own: a new turn."""
        rest = self._detokenizer.flush()
        self._detokenized += len(rest)
        self._released(rest, ended=True)
        self._detokenizer = self._decoding.detokenizer()
        if self._parser is not None:
            self._parser.restart(block)

    def parts(self) -> list[Part]:
        """What was found in the text of a chat and not given yet."""
        found, self._parts = self._parts, []
        return found

    @property
    def unreleased(self) -> list[Logprobs]:
        """Of the last tokens, those whose text is held back."""
        return [one.logprobs for one in self._said if one.logprobs is not None]

    def _released_tokens(self) -> list[OutputToken]:
        """Tokens whose text begins in what was released and that were not given yet; all that is left at the end."""
        found = []
        end = not self.open and (self._stops is None or self._stops.matched is None)
        while self._said and (end or self._said[0].offset < self._sent):
            found.append(self._said.popleft())
        return found

    def _new_ids(self) -> list[int]:
        """Token ids that were not given yet, those that ended the answer included."""
        found, self._ids = self._ids, []
        return found

    def _answer(self, event: EngineOutput) -> tuple[str, FinishReason | None]:
        reason = event.finish_reason
        if self._stops is None and self._request.logprobs < 0:
            self.num_tokens += len(event.token_ids)
            text = self._detokenizer.push(event.token_ids)
        else:
            text = self._token_by_token(event)
        self.cumulative += sum(one.logprob for one in event.logprobs)
        if self._request.token_ids:
            self._ids += event.token_ids
        if self.stopped:
            return text, "stop"
        if reason is not None:
            self.open = False
            text += self._ended_by(event.stop_token_id)
            rest, stopped = self._rest()
            text += rest
            reason = "stop" if stopped else reason
        return text, reason

    def _begin(self) -> str:
        """The echo of the prompt, once, and its tokens where logprobs are wanted. That of a chat is no answer."""
        lead, self._lead = self._lead, None
        if lead is None:
            return ""
        if self._request.chat:
            self._parts.append(Content(lead))
            return ""
        if self._request.logprobs >= 0:
            self._said.extend(_prompt_said(self._prompt, self.prompt_logprobs, self._decoding, len(lead)))
        self._detokenized += len(lead)
        return lead

    def _released(self, text: str, *, ended: bool = False) -> str:
        self._sent += len(text)
        if self._parser is not None:
            parts = [*self._parser.push(text), *(self._parser.finish() if ended else ())]
            if any(isinstance(part, Reasoning) for part in parts):
                self.reasoning_tokens = self.num_tokens  # reasoning comes first
            self._parts += parts
        elif self._request.chat and text:
            self._parts.append(Content(text))
        return text

    def _token_by_token(self, event: EngineOutput) -> str:
        """So that what follows a stop string in the same step is not counted, and each token has its place."""
        parts = []
        for place, token_id in enumerate(event.token_ids):
            self.num_tokens += 1
            piece = self._detokenizer.push((token_id,))
            if self._request.logprobs >= 0:
                found = event.logprobs[place] if place < len(event.logprobs) else None
                self._said.append(
                    OutputToken(token_id, self._detokenized + _before(token_id, piece, self._decoding.decode), found)
                )
            self._detokenized += len(piece)
            if self._stops is None or self.num_tokens < self._min_tokens:
                parts.append(piece)  # min_tokens holds against stop strings too
                continue
            parts.append(self._stops.push(piece))
            if self._stops.matched is not None:
                self.open, self.stopped = False, True
                break
        return "".join(parts)

    def _ended_by(self, stop_token_id: int | None) -> str:
        """The token that ended it is counted, and shown where stops are."""
        if stop_token_id is None:
            return ""
        self.num_tokens += 1
        if stop_token_id in self._request.stop_ids:
            self._stop_id = stop_token_id
        if self._request.token_ids:
            self._ids.append(stop_token_id)
        if not self._request.include_stop:
            return ""
        piece = self._detokenizer.push((stop_token_id,))
        return piece if self._stops is None else self._stops.push(piece)

    def _rest(self) -> tuple[str, bool]:
        """What detokenizer and matcher still hold back, and whether a stop string is complete with it."""
        rest = self._detokenizer.flush()
        if self._stops is None:
            return rest, False
        text = self._stops.push(rest)
        return text + self._stops.flush(), self._stops.matched is not None


def _call_ids(request: GenerationRequest, index: int) -> Callable[[], str]:
    """Makes identifiers of calls, which no other answer has; another replica that goes on makes the same."""
    assert request.parser is not None, "there is nothing to look for"
    tools, seed, numbers = request.parser.tools, request.requests[index].sampling.seed, count()
    return lambda: answer_parser.call_id(tools, f"{request.answer_id} {seed} {index} {next(numbers)}")


def _before(token_id: int, piece: str, decode: Decode) -> int:
    """Characters of a piece that belong to tokens before the one that completed it: bytes that became none."""
    if len(piece) < 2:
        return 0
    own = decode((token_id,))
    return len(piece) - len(own) if own and REPLACEMENT not in own and piece.endswith(own) else 0


def _prompt_said(ids: Sequence[int], found: Sequence[Logprobs], decoding: Decoding, length: int) -> list[OutputToken]:
    """The tokens of an echoed prompt, each with its offset. length: of the prompt, in characters."""
    detokenizer, offset, tokens = decoding.detokenizer(), 0, []
    for token_id, one in zip(ids, (None, *found), strict=False):
        piece = detokenizer.push((token_id,))
        tokens.append(OutputToken(token_id, min(offset + _before(token_id, piece, decoding.decode), length), one))
        offset += len(piece)
    return tokens
