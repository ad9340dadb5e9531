"""Beam search as arithmetic: which continuations of the running beams go on, which have ended, and when it is over.

Used by a beam group, once for each token. The rules are those of transformers' `generate(num_beams=…)`, so the result
is the same token for token: a hypothesis scores the sum of its logprobs over the number of its tokens, the one that
ended it included, to the power of length_penalty; it is kept if it was among the `width` best continuations of its
step. (vLLM divides by the length of prompt and answer; with length_penalty 0 both are the plain sum.) It knows no
blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvasir_runtime.wire import BeamSearchConfig, FinishReason, Logprobs


class BeamNode(NamedTuple):
    """One token of a beam, linked to those before it: beams that begin alike share their beginning."""

    before: "BeamNode | None"
    token: int
    logprobs: Logprobs


class BeamContinuation(NamedTuple):
    """A continuation. parent: which of the running beams it continues; score: sum of its logprobs."""

    parent: int
    score: float
    node: BeamNode


class BeamHypothesis(NamedTuple):
    """A beam that ended. tokens, logprobs: of the answer, without the id that ended it."""

    score: float
    tokens: tuple[int, ...]
    logprobs: tuple[Logprobs, ...]
    reason: FinishReason
    stop_token_id: int | None


@dataclass(slots=True, kw_only=True)
class BeamSearch:
    """The state of one search.

    stops: ids that end a beam; min_tokens: before so many none does, unless nothing else may follow.
    ends_once: the likeliest of its stops ends a beam, and no other, since the answers would read the same.
    max_tokens: of an answer, at least 1. num_logprobs: likeliest tokens kept beside each of an answer, -1 for no
    logprobs. finished: best first. length: tokens of every running beam.
    """

    beam: BeamSearchConfig
    stops: frozenset[int]
    min_tokens: int
    max_tokens: int
    num_logprobs: int
    ends_once: bool = False
    finished: list[BeamHypothesis] = field(default_factory=list)
    running: list[BeamContinuation] = field(default_factory=list)
    length: int = 0

    @property
    def num_candidates(self) -> int:
        """Likeliest tokens of each beam that can matter: as many as there are beams, and all that may end one."""
        return self.beam.width + len(self.stops)

    def advance(self, found: Sequence[Logprobs]) -> list[BeamContinuation]:
        """Take one step: the beams that run now, best first; none when the search is over.

        found: for each running beam, in their order (at first for the prompt alone), its likeliest next tokens, or all
        that its grammar allows where these are fewer.
        """
        candidates = self._candidates(found)
        self.length += 1
        is_last = self.length >= self.max_tokens
        ended, going = [], []
        for place, child in enumerate(candidates):
            stops = child.node.token in self.stops
            if not stops and not is_last:
                going.append(child)
            elif place < self.beam.width:
                ended.append(self._hypothesis(child, stops=stops))
        merged = sorted([*self.finished, *ended], key=lambda one: -one.score)
        self.finished = merged[: self.beam.width]
        self.running = [] if is_last else going[: self.beam.width]
        if self._is_over():
            self.running = []
        return self.running

    def _candidates(self, found: Sequence[Logprobs]) -> list[BeamContinuation]:
        """All that may follow, best first."""
        beams: Sequence[BeamContinuation | None] = self.running or [None] * len(found)
        children = []
        for parent, (beam, one) in enumerate(zip(beams, found, strict=True)):
            score, before = (0.0, None) if beam is None else (beam.score, beam.node)
            is_early = self.length < self.min_tokens and not self.stops.issuperset(one.top_ids)
            ends = False
            for rank, (token, logprob) in enumerate(zip(one.top_ids, one.top, strict=True), 1):
                if token in self.stops:
                    if is_early or (ends and self.ends_once):
                        continue
                    ends = True
                top = max(self.num_logprobs, 0)
                logprobs = Logprobs(logprob, rank, one.top_ids[:top], one.top[:top])
                children.append(BeamContinuation(parent, score + logprob, BeamNode(before, token, logprobs)))
        return sorted(children, key=lambda child: (-child.score, child.parent, child.node.token))

    def _hypothesis(self, child: BeamContinuation, *, stops: bool) -> BeamHypothesis:
        nodes: list[BeamNode] = []
        node: BeamNode | None = child.node.before if stops else child.node
        while node is not None:
            nodes.append(node)
            node = node.before
        nodes.reverse()
        return BeamHypothesis(
            score=child.score / self.length**self.beam.length_penalty,
            tokens=tuple(node.token for node in nodes),
            logprobs=tuple(node.logprobs for node in nodes) if self.num_logprobs >= 0 else (),
            reason="stop" if stops else "length",
            stop_token_id=child.node.token if stops else None,
        )

    def _is_over(self) -> bool:
        """No beam goes on, or none can get better than the worst that is kept, by the rule of early_stopping."""
        if not self.running:
            return True
        beam = self.beam
        if len(self.finished) < beam.width:
            return False
        if beam.early_stopping is True or beam.width == 1:  # one beam alone is a greedy answer
            return True
        hopeful = beam.early_stopping == "never" and beam.length_penalty > 0
        best = self.running[0].score / (self.max_tokens if hopeful else self.length) ** beam.length_penalty
        return bool(best <= self.finished[-1].score)
