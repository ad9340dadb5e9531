"""Progress of LLM on a terminal: while the model loads, and while prompts are answered.

Called by LLM; on_progress and on_output come from its event loop's thread. It writes to standard error only.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from kvasir_runtime import engine_reports
from kvasir_runtime.offline.outputs import Output


class ProgressBars:
    """shown: None shows bars on a terminal."""

    def __init__(self, shown: bool | None) -> None:
        self._shown = sys.stderr.isatty() if shown is None else shown

    @contextmanager
    def loading(self) -> Iterator[Callable[[engine_reports.Progress], None]]:
        """Yields the function that shows the progress of a start."""
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        with self._progress(*columns, transient=True) as bar:
            task = bar.add_task("starting", total=1.0)

            def show(progress: engine_reports.Progress) -> None:
                bar.update(task, description=progress.phase, completed=progress.progress_fraction)

            yield show

    @contextmanager
    def generating(self, num_prompts: int, *, wanted: bool = True) -> Iterator[Callable[[Output], None]]:
        """Yields the function that counts each complete output. wanted: False shows no bar of these."""
        rate = TextColumn("{task.fields[tokens]:,} tokens")
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), rate)
        with self._progress(*columns, wanted=wanted) as bar:
            task = bar.add_task("generating", total=num_prompts, tokens=0)
            tokens = 0

            def show(output: Output) -> None:
                nonlocal tokens
                tokens += sum(len(choice.token_ids) for choice in output.outputs)
                bar.update(task, advance=1, tokens=tokens)

            yield show

    def _progress(self, *columns: ProgressColumn, transient: bool = False, wanted: bool = True) -> Progress:
        shown = self._shown and wanted
        return Progress(*columns, console=Console(file=sys.stderr), transient=transient, disable=not shown)
