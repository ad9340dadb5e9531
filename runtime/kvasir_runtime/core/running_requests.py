"""The requests that have rows, by id, the most senior first. Owned by the scheduler; others read it."""

from collections import Counter

from kvasir_runtime.core.kinds.interface import RequestKind


class RunningRequests(dict[str, RequestKind]):
    """In the order in which they are planned, and the reverse of that in which they are preempted."""

    def __init__(self) -> None:
        super().__init__()
        self._num_rows = Counter[int]()
        """By data-parallel rank."""

    def add(self, kind: RequestKind) -> None:
        """One more; it is the last, unless some priority made others less senior."""
        last = next(reversed(self.values()), kind)
        self[kind.request.request_id] = kind
        self._num_rows[kind.request.data_rank] += kind.num_rows
        if kind.request.seniority < last.request.seniority:
            in_order = sorted(self.items(), key=lambda item: item[1].request.seniority)
            self.clear()
            self.update(in_order)

    def remove(self, kind: RequestKind) -> None:
        """One less, which is there."""
        del self[kind.request.request_id]
        self._num_rows[kind.request.data_rank] -= kind.num_rows

    def of_rank(self, data_rank: int) -> list[RequestKind]:
        """Those with blocks of a data-parallel rank."""
        return [kind for kind in self.values() if kind.request.data_rank == data_rank]

    def num_rows(self, data_rank: int) -> int:
        """Rows of those with blocks of a data-parallel rank."""
        return self._num_rows[data_rank]

    def least_senior(self, data_rank: int = 0) -> RequestKind:
        """The last of those with blocks of a data-parallel rank. There must be one."""
        return next(kind for kind in reversed(self.values()) if kind.request.data_rank == data_rank)

    def drop_soon(self, data_rank: int = 0) -> bool:
        """Whether a window leaves a block of a data-parallel rank once what is launched is collected."""
        sequences = [kind.sequence for kind in self.of_rank(data_rank) if kind.sequence.active]
        return any(sequence.computed > sequence.blocks.leaves_at for sequence in sequences)
