"""Work that the process repeats beside its requests; an error ends one turn of it, not the work."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)


async def repeat(work: Callable[[], Awaitable[None]], *, every_s: float, ended: Callable[[], bool]) -> None:
    """Await work, and again every_s seconds after each end of it, until ended. The same error is logged once in a row.

    Nothing awaits such a task before the process ends, so an error that ended it would not be seen.
    """
    trouble = ""
    while not ended():
        try:
            await work()
            trouble = ""
        except Exception as error:
            if repr(error) != trouble:
                log.exception("work that is done every %g s failed, and is tried again", every_s)
            trouble = repr(error)
        await asyncio.sleep(every_s)
