"""What may follow a beam with a grammar: the likeliest tokens that its mask, and where there is one its check, allow.

Used by `grammar_masks`. The beam search of `core.kinds` chooses among them.
"""

from typing import TYPE_CHECKING, Final

import msgspec
from torch import Tensor

from kvasir_runtime.core.plan import SampledTokens

if TYPE_CHECKING:
    from kvasir_runtime.guide.matcher import GrammarMatcher

MAX_CHECKED: Final = 8
"""Candidates of one beam that a check may admit in a step, each in a fraction of a millisecond."""
MAX_REFUSED: Final = 4
"""Those that it may refuse: each takes milliseconds, since it searches for a way to end the answer."""
_NEVER: Final = float("-inf")


def keep_admitted(logits: Tensor, matcher: "GrammarMatcher") -> None:
    """Forbid all but the likeliest that the check of a beam admits, or the token that is known to be right.

    logits: (vocab,) float32, -inf where the mask forbids, changed in place.
    """
    values, ids = logits.topk(min(MAX_CHECKED + MAX_REFUSED, len(logits)))
    kept: list[int] = []
    for number, (value, token) in enumerate(zip(values.tolist(), ids.tolist(), strict=True)):
        if value == _NEVER or len(kept) == MAX_CHECKED or number - len(kept) == MAX_REFUSED:
            break
        if matcher.admits(token):
            kept.append(token)
    kept = kept or [matcher.token_to_end()]
    values = logits[kept]
    logits.fill_(_NEVER)
    logits[kept] = values


def continuations(sample: SampledTokens, matcher: "GrammarMatcher") -> SampledTokens:
    """The sample of a beam with its likeliest tokens as far as they may follow; with an error where none may."""
    if matcher.error:
        return SampledTokens(sample.row, (), error=matcher.error)
    (found,) = sample.logprobs
    count = sum(value > _NEVER for value in found.top)
    found = msgspec.structs.replace(found, top_ids=found.top_ids[:count], top=found.top[:count])
    return msgspec.structs.replace(sample, logprobs=(found,))
