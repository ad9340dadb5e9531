"""The runner's rows: which are free, and which leave their sequences by the next plan. Owned by the scheduler."""


class RowPool:
    """free: rows that a request may take, the last one first; others read how many there are.

    waits: a row that a launched plan names is free once that is collected. Else it is at once, where the runner samples
    in the order of the launches; with several steps over stages it samples a step after it has applied later plans.
    """

    def __init__(self, num_rows: int, *, waits: bool) -> None:
        self.free = list(range(num_rows - 1, -1, -1))
        self._waits, self._collected = waits, 0
        self._waiting: list[tuple[int, list[int]]] = []
        self._leaves: list[int] = []

    def take(self, count: int) -> list[int]:
        """Rows for one request; as many must be free."""
        return [self.free.pop() for _ in range(count)]

    def give_up(self, rows: list[int], step: int) -> None:
        """A request has lost its rows. step: the last launched plan that names them."""
        if self._waits and step > self._collected:
            self._waiting.append((step, rows))
            return
        self.free += reversed(rows)
        self._leaves += rows

    def settle(self, step: int) -> None:
        """Every plan up to step was collected."""
        self._collected = step
        waiting, self._waiting = self._waiting, []
        for last, rows in waiting:
            self.give_up(rows, last)

    def leave_again(self, rows: list[int]) -> None:
        """Plans by which rows were to leave may not all have been applied."""
        self._leaves += rows

    def take_leaves(self) -> tuple[int, ...]:
        """The rows that leave by the plan that is made now."""
        leaves, self._leaves = tuple(self._leaves), []
        return leaves
