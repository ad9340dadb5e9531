"""Draws snapshots: a live table on a terminal, a plain line now and then elsewhere. It decides nothing."""

import time
from typing import Final, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from kvasir_local.demo.load import LoadTotals
from kvasir_local.demo.view import Snapshot

_ROWS: Final = 12
_PLAIN_INTERVAL_S: Final = 5.0


class Screen:
    """Shows the last snapshots while the load runs. Use as a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rows: list[tuple[str, ...]] = []
        self._live = Live(console=console, auto_refresh=False, transient=False) if console.is_terminal else None
        self._started = time.monotonic()
        self._drawn_at = 0.0
        self._wanted = -1

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def show(self, phase: str, now: Snapshot, tokens_per_s: float, counts: LoadTotals) -> None:
        """Adds a row, and draws when there is something new to see."""
        at = time.monotonic()
        row = cells(at - self._started, phase, now, tokens_per_s, counts)
        if self._live:
            self._rows = [*self._rows, row][-_ROWS:]
            self._live.update(_table(self._rows, now.reason), refresh=True)
        elif now.wanted != self._wanted or at - self._drawn_at >= _PLAIN_INTERVAL_S:
            self._console.print(plain(row, now.reason), soft_wrap=True, highlight=False)
            self._drawn_at = at
        self._wanted = now.wanted


_HEAD: Final = (
    "time",
    "phase",
    "replicas",
    "KV pinned/cached/free",
    "running",
    "waiting",
    "tokens/s",
    "streams ok/broken",
)


def cells(elapsed_s: float, phase: str, now: Snapshot, tokens_per_s: float, counts: LoadTotals) -> tuple[str, ...]:
    """One row, as text."""
    return (
        f"{elapsed_s:.0f} s",
        phase,
        f"{now.ready} of {now.wanted}",
        f"{now.pinned_tokens}/{now.cached_tokens}/{now.free_tokens}",
        str(now.running),
        str(now.waiting),
        f"{tokens_per_s:.0f}",
        f"{counts.finished}/{counts.broken}",
    )


def plain(row: tuple[str, ...], reason: str) -> str:
    """The row as one line for a log."""
    return "  ".join(f"{head} {cell}" for head, cell in zip(_HEAD, row, strict=True)) + f"  | {reason}"


def _table(rows: list[tuple[str, ...]], reason: str) -> Table:
    table = Table(*_HEAD, title="load on the service", caption=reason, caption_justify="left")
    for row in rows:
        table.add_row(*row)
    return table
