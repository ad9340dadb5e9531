"""The walk along the drafts of one chunk: which of the samples behind them count.

Used by `drafts` with what was sampled, and by `grammar_masks`, whose matchers accept a sample only where it counts.
"""

from collections.abc import Sequence
from itertools import takewhile

import msgspec

from kvasir_runtime.core.plan import SampledTokens
from kvasir_runtime.wire import Logprobs


class VerifiedDrafts:
    """What a chunk with drafts gives, from what was sampled behind more and more of them.

    place: behind how many drafts the next sample counts, None where none does.
    """

    def __init__(self, drafts: Sequence[int]) -> None:
        self._drafts, self._tokens, self._logprobs = tuple(drafts), list[int](), list[Logprobs]()
        self._last: SampledTokens | None = None
        self.place: int | None = 0

    def add(self, sample: SampledTokens) -> None:
        """The sample of the place. It has no tokens where none can be taken there: then the next step does, as its
        first; and several where a grammar forces them, drafts among these or not.
        """
        if self._last is None or sample.tokens or sample.ended or sample.error:
            self._last = sample
        self._tokens += sample.tokens
        self._logprobs += sample.logprobs
        num_tokens = len(self._tokens)
        goes_on = sample.tokens and not (sample.ended or sample.error) and num_tokens <= len(self._drafts)
        self.place = num_tokens if goes_on and self._num_right == num_tokens else None

    @property
    def result(self) -> SampledTokens:
        """Once there is no place."""
        assert self._last is not None, "nothing was added"
        accepted = max(0, min(self._num_right, len(self._tokens) - 1))  # the last token is computed by the next step
        tokens, logprobs = tuple(self._tokens), tuple(self._logprobs)
        return msgspec.structs.replace(self._last, tokens=tokens, logprobs=logprobs, accepted=accepted)

    @property
    def _num_right(self) -> int:
        """Drafts at the beginning of the tokens."""
        pairs = zip(self._drafts, self._tokens, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
