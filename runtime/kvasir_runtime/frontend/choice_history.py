"""What an engine gave of one choice so far, so that the choice can be brought to the same place again elsewhere.

Kept by the output collector of a stream that another replica may continue, read and written by `continuation`.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from kvasir_runtime.wire import EngineOutput, FinishReason, Logprobs, packed_ids, unpacked_ids

_PASSED = Logprobs(0.0, 1)
"""In place of logprobs that were sent already."""


class ChoiceProgress(msgspec.Struct, frozen=True, array_like=True):
    """A part of a history as it travels.

    packed: its ids as `wire.packed_ids` has them. counts: how many of them each output had. unreleased: logprobs of the
    last tokens, which wait for their text. reason, stop_token_id: of the last output, where it ended the choice.
    """

    index: int
    packed: bytes
    counts: tuple[int, ...]
    cached_tokens: int = 0
    unreleased: tuple[Logprobs, ...] = ()
    reason: FinishReason | None = None
    stop_token_id: int | None = None


@dataclass(slots=True, eq=False)
class ChoiceHistory:
    """The outputs of one choice, in order; the fields are those of ChoiceProgress. since: ids and outputs before the
    next progress()."""

    ids: "array[int]" = field(default_factory=lambda: array("I"))
    counts: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    unreleased: tuple[Logprobs, ...] = ()
    reason: FinishReason | None = None
    stop_token_id: int | None = None
    since: tuple[int, int] = (0, 0)

    def record(self, output: EngineOutput) -> None:
        """One more output. One without tokens that ends nothing changes nothing."""
        if output.token_ids or output.finish_reason is not None:
            self.ids.extend(output.token_ids)
            self.counts.append(len(output.token_ids))
            self.reason, self.stop_token_id = output.finish_reason, output.stop_token_id

    def progress(self, index: int, unreleased: Sequence[Logprobs], cached_tokens: int) -> ChoiceProgress | None:
        """What came since the last call; None where nothing did."""
        (ids, counts), self.since = self.since, (len(self.ids), len(self.counts))
        if counts == len(self.counts):
            return None
        return ChoiceProgress(
            index,
            packed_ids(self.ids[ids:]),
            tuple(self.counts[counts:]),
            cached_tokens,
            tuple(unreleased[-len(self.ids) :]) if self.ids else (),
            self.reason,
            self.stop_token_id,
        )

    def extend(self, progress: ChoiceProgress) -> None:
        """Append a part. Raises ValueError where it does not fit together."""
        ids = unpacked_ids(progress.packed)
        if sum(progress.counts) != len(ids) or min(progress.counts, default=0) < 0 or self.reason is not None:
            raise ValueError("outputs and their tokens are not as many")
        self.ids.extend(ids)
        self.counts += progress.counts
        self.cached_tokens, self.unreleased = progress.cached_tokens, progress.unreleased
        self.reason, self.stop_token_id = progress.reason, progress.stop_token_id

    def outputs(self, request_id: str, *, logprobs: bool) -> Iterator[EngineOutput]:
        """The same outputs again. logprobs: the tokens have some, which are true where they have not been sent yet."""
        known = [_PASSED] * (len(self.ids) - len(self.unreleased)) + list(self.unreleased) if logprobs else []
        start = 0
        for number, count in enumerate(self.counts, 1):
            last = number == len(self.counts)
            yield EngineOutput(
                request_id=request_id,
                token_ids=tuple(self.ids[start : start + count]),
                finish_reason=self.reason if last else None,
                stop_token_id=self.stop_token_id if last else None,
                cached_tokens=self.cached_tokens,
                logprobs=tuple(known[start : start + count]),
            )
            start += count
