"""What may follow a beam with a grammar: the likeliest tokens that its mask, and where there is one its check, allow.

Used by `grammar_masks`. The beam search of `core.kinds` chooses among them.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

import msgspec
from torch import Tensor

from kvasir_runtime.core.plan import SampledTokens

if TYPE_CHECKING:
    from kvasir_runtime.guide.matcher import GrammarMatcher

MAX_CANDIDATES: Final = 12
"""The likeliest tokens of one beam, which its check may judge in a step."""
MAX_ADMITTED: Final = 32
"""Candidates of all beams of a step that checks may admit, each in a fraction of a millisecond."""
MAX_REFUSED: Final = 8
"""Those that they may refuse: each takes milliseconds, since a check searches for a way to end the answer."""
_NEVER: Final = float("-inf")


def keep_admitted(logits: Tensor, matchers: "Mapping[int, GrammarMatcher]") -> None:
    """Forbid all but the likeliest that the check of each beam admits, or the token that is known to be right.

    logits: (rows, vocab) float32, -inf where the mask forbids, changed in place. matchers: of the beams, by row. The
    likeliest token of every beam is judged before any second one, so that the bounds of the step leave each some.
    """
    values, ids = logits[list(matchers)].topk(min(MAX_CANDIDATES, logits.shape[1]))
    candidates = [
        [token for value, token in zip(*beam, strict=True) if value > _NEVER]
        for beam in zip(values.tolist(), ids.tolist(), strict=True)
    ]
    kept: dict[int, list[int]] = {row: [] for row in matchers}
    num_admitted = num_refused = 0
    for row, token in _by_rank(list(matchers), candidates):
        if num_admitted == MAX_ADMITTED or num_refused == MAX_REFUSED:
            break
        if matchers[row].admits(token):
            kept[row].append(token)
            num_admitted += 1
        else:
            num_refused += 1
    for row, matcher in matchers.items():
        tokens = kept[row] or [matcher.token_to_end()]
        remaining = logits[row, tokens]
        logits[row] = _NEVER
        logits[row, tokens] = remaining


def _by_rank(rows: Sequence[int], candidates: Sequence[Sequence[int]]) -> Iterator[tuple[int, int]]:
    """The first candidate of each row, then the second ones."""
    for rank in zip_longest(*candidates):
        for row, token in zip(rows, rank, strict=True):
            if token is not None:
                yield row, token


def continuations(sample: SampledTokens, matcher: "GrammarMatcher") -> SampledTokens:
    """The sample of a beam with its likeliest tokens as far as they may follow; with an error where none may."""
    if matcher.error:
        return SampledTokens(sample.row, (), error=matcher.error)
    (found,) = sample.logprobs
    count = sum(value > _NEVER for value in found.top)
    found = msgspec.structs.replace(found, top_ids=found.top_ids[:count], top=found.top[:count])
    return msgspec.structs.replace(sample, logprobs=(found,))
