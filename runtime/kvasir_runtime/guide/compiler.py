"""Compiled grammars of the engine: made in a thread while the engine runs, kept while a request uses them.

The engine's loop holds requests back until their grammar is ready; the runner takes a matcher for each row. A worker
validated the grammar before, under the same limits, so compiling it takes a known amount of time and memory.
"""

import contextlib
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvasir_runtime.guide.errors import GrammarError, one_line
from kvasir_runtime.wire import Grammar, SamplingConfig

if TYPE_CHECKING:  # llguidance is loaded with the first grammar
    from llguidance import LLMatcher

    from kvasir_runtime.guide.checker import AnswerChecker
    from kvasir_runtime.guide.matcher import GrammarMatcher
    from kvasir_runtime.guide.vocabulary import Vocabulary

MAX_IDLE = 64
NICENESS = 5
MAX_IDLE_BYTES = 4 << 20


@dataclass(slots=True)
class _Entry:
    """holders: requests that need it."""

    made: "Future[tuple[LLMatcher, AnswerChecker | None]]"
    holders: set[str] = field(default_factory=set)


class GrammarCompiler:
    """load: reads the vocabulary, at the first grammar. Used by one thread, the engine's."""

    def __init__(self, load: "Callable[[], Vocabulary]", eos_token_ids: Sequence[int]) -> None:
        self._load = load
        self._eos_token_ids = tuple(eos_token_ids)
        self._vocabulary: Vocabulary | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._entries: OrderedDict[Grammar, _Entry] = OrderedDict()
        self._held: dict[str, Grammar] = {}

    def load(self) -> None:
        """Load the vocabulary now; where that fails, the first grammar raises the reason."""
        with contextlib.suppress(GrammarError):
            self._vocabulary = self._load()

    def compile(self, request_id: str, grammar: Grammar) -> None:
        """Begin to compile for a request; its grammar is kept until the request is dropped."""
        entry = self._entry(grammar)
        entry.holders.add(request_id)
        self._held[request_id] = grammar

    def ready(self, request_id: str) -> str | None:
        """None while it is compiled, "" when it is, else why it cannot be."""
        made = self._entries[self._held[request_id]].made
        if not made.done():
            return None
        error = made.exception()
        return "" if error is None else f"the grammar of the answer cannot be used: {one_line(str(error))}"

    def drop(self, request_id: str) -> None:
        """A request ended; those without a grammar are ignored."""
        grammar = self._held.pop(request_id, None)
        if grammar is not None:
            self._entries[grammar].holders.discard(request_id)
            self._forget()

    def matcher(self, sampling: SamplingConfig, answered: Sequence[int]) -> "GrammarMatcher":
        """The beginning of an answer, or where it stood when it was preempted. Raises GrammarError."""
        from kvasir_runtime.guide.matcher import GrammarMatcher

        assert sampling.grammar is not None, "the request has no grammar"
        compiled, checker = self._entry(sampling.grammar).made.result()
        own = None if checker is None else checker.copy()
        return GrammarMatcher(compiled.deep_copy(), sampling, self._eos_token_ids, answered, own)

    @property
    def vocab_size(self) -> int:
        """Ids that masks have bits for, 0 before the first grammar is compiled."""
        return 0 if self._vocabulary is None else int(self._vocabulary.tokenizer.vocab_size)

    def _entry(self, grammar: Grammar) -> _Entry:
        entry = self._entries.get(grammar)
        if entry is None:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars", initializer=_yield_cores)
            entry = self._entries[grammar] = _Entry(self._thread.submit(self._compile, grammar))
        self._entries.move_to_end(grammar)
        return entry

    def _compile(self, grammar: Grammar) -> "tuple[LLMatcher, AnswerChecker | None]":
        """In the thread."""
        if self._vocabulary is None:
            self._vocabulary = self._load()
        return self._vocabulary.matcher(grammar), self._vocabulary.checker(grammar)

    def _forget(self) -> None:
        """Drop unused grammars, the longest unused first, until few and small ones are left."""
        idle = [grammar for grammar, entry in self._entries.items() if not entry.holders]
        size = sum(len(grammar.text) for grammar in idle)
        for number, grammar in enumerate(idle):
            if len(idle) - number <= MAX_IDLE and size <= MAX_IDLE_BYTES:
                return
            size -= len(grammar.text)
            del self._entries[grammar]


def _yield_cores() -> None:
    """Steps of the model come first. On Linux a priority is the thread's own; elsewhere it stays as it is."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
