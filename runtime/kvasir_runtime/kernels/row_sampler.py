"""Sampling for rows on the host, with what requests change in their logits, as one operation.

`Ops.row_sampler` builds it where the backend has one; elsewhere the runner changes copies of the logits by `penalties`,
`bitmask` and others of torch's operations, and samples from these. Ids are the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsEdits:
    """What the request of a row changes in its logits before sampling, in the order of `wire.SamplingConfig`.

    allowed: ascending ids, which alone remain; empty for all. stops: ids that are forbidden while the answer is below
    its min_tokens. biases: by id. words: the ids of each bad word; penalties and words refer to the known ids of the
    row, of which prompt_tokens are the prompt. fallback: the id that is taken where all are forbidden, None for none.
    """

    allowed: Sequence[int] = ()
    stops: Sequence[int] = ()
    biases: Mapping[int, float]
    words: Sequence[Sequence[int]] = ()
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    prompt_tokens: int
    fallback: int | None = None

    @property
    def any(self) -> bool:
        """Whether more than stops may change logits."""
        penalties = self.repetition_penalty != 1 or self.frequency_penalty or self.presence_penalty
        return bool(self.allowed or self.biases or self.words or penalties)


IdMasks = Mapping[int, NDArray[np.int32]]
"""By index of a sequence a bit for each id that is allowed: bit id % 32 of word id // 32, as in `kernels.bitmask`."""


class LateMask(NamedTuple):
    """A mask as in `IdMasks` that another thread may still compute: it is whole once num_done[0] is above number."""

    mask: NDArray[np.int32]
    num_done: NDArray[np.int64]
    number: int


class RowChunk(NamedTuple):
    """Positions start .. start + num_tokens of a row, which a step computes.

    num_samples: how many of the last of them are sampled from. min_tokens_left: of the answer, at the first of these;
    one less at each further one.
    """

    row: int
    start: int
    num_tokens: int
    num_samples: int
    min_tokens_left: int


class RowSampler(Protocol):
    """Changes logits and samples, for rows that stay where they are."""

    def edit(self, row: int, edits: LogitsEdits | None) -> None:
        """Change the logits of a row so from now on; None for a row that has left."""
        ...

    def sample(self, logits: Tensor, chunks: Sequence[RowChunk], masks: IdMasks) -> Tensor:
        """(chunks,) int64 ids as `kernels.sample` draws them at the end of each chunk, which are not appended.

        logits: (chunks, vocab) as the model gives them; they stay as they are. chunks: several may end in one row.
        masks: of grammars. Where one leaves no id that the edits do not forbid, it alone decides.
        """
        ...


BuildRowSampler = Callable[[NDArray[np.int32], NDArray[np.void]], RowSampler]
"""From the known ids of every row, (rows, positions), and how they are drawn: (rows,) `sample.DRAW`, whose positions
are not read."""
