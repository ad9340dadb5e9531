"""The requests that have rows, by id, the most senior first. Owned by the scheduler; others read it."""

from kvasir_runtime.core.kinds.interface import RequestKind


class RunningRequests(dict[str, RequestKind]):
    """In the order in which they are planned, and the reverse of that in which they are preempted."""

    def add(self, kind: RequestKind) -> None:
        """One more; it is the last, unless some priority made others less senior."""
        last = next(reversed(self.values()), kind)
        self[kind.request.request_id] = kind
        if kind.request.seniority < last.request.seniority:
            in_order = sorted(self.items(), key=lambda item: item[1].request.seniority)
            self.clear()
            self.update(in_order)

    @property
    def least_senior(self) -> RequestKind:
        """The last of them. There must be one."""
        return next(reversed(self.values()))

    @property
    def drop_soon(self) -> bool:
        """Whether a window leaves a block once what is launched is collected."""
        sequences = [kind.sequence for kind in self.values() if kind.sequence.active]
        return any(sequence.computed > sequence.blocks.leaves_at for sequence in sequences)
