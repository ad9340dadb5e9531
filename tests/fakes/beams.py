"""Beam search written down a second time, over whole vocabularies and without a cache: what the engine must answer."""

from collections.abc import Sequence
from typing import Any

from fakes.model import FakeModel


def searched(
    model: FakeModel,
    prompt: Sequence[int],
    *,
    width: int,
    max_tokens: int,
    stops: frozenset[int],
    min_tokens: int = 0,
    length_penalty: float = 1.0,
    early_stopping: Any = False,
) -> list[tuple[list[int], str, float]]:
    """The answers, best first: tokens without the stop, why they ended, score. After transformers' `_beam_search`."""
    running: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[tuple[float, list[int], str]] = []
    for length in range(1, max_tokens + 1):
        found = []
        for number, (score, tokens) in enumerate(running):
            for logprob, token in model.logprobs([*prompt, *tokens]):
                if token not in stops or length > min_tokens:
                    found.append((-(score + logprob), number, token))
        found.sort()
        following: list[tuple[float, list[int]]] = []
        for place, (score, number, token) in enumerate(found):
            tokens = [*running[number][1], token]
            if token in stops or length == max_tokens:
                if place < width:
                    ended = (tokens[:-1], "stop") if token in stops else (tokens, "length")
                    finished.append((-score / length**length_penalty, *ended))
            elif len(following) < width:
                following.append((-score, tokens))
        finished = sorted(finished, key=lambda one: -one[0])[:width]
        running = following
        if not running:
            break
        if len(finished) == width:
            longest = max_tokens if early_stopping == "never" and length_penalty > 0 else length
            if width == 1 or early_stopping is True or running[0][0] / longest**length_penalty <= finished[-1][0]:
                break
    return [(tokens, reason, score) for score, tokens, reason in finished]
