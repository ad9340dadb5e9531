"""Finds the model of a start, after a download if need be, whose bytes lifecycle and console have meanwhile.

Called by the process, before there is an engine.
"""

import asyncio
from pathlib import Path

from kvasir_api.forecast import readable
from kvasir_api.options import ServeOptions
from kvasir_runtime import source
from kvasir_runtime.server.console import Console
from kvasir_runtime.server.lifecycle import Lifecycle


async def model_folder(options: ServeOptions, lifecycle: Lifecycle, console: Console) -> Path:
    """The model's folder; a draft model is fetched as well. Raises StartError."""
    loop = asyncio.get_running_loop()

    def show(done_bytes: int, total_bytes: int) -> None:
        message = f"downloading the model, {readable(done_bytes)} of {readable(total_bytes)}"
        lifecycle.download(done_bytes, total_bytes, message)
        console.show("starting", lifecycle.fraction, message=message)

    def on_bytes(done_bytes: int, total_bytes: int) -> None:
        """In the thread that fetches."""
        loop.call_soon_threadsafe(show, done_bytes, total_bytes)

    folder = await asyncio.to_thread(source.resolve, options.model, options.revision, on_bytes)
    await asyncio.to_thread(source.resolve_drafter, options.speculation, on_bytes)
    lifecycle.advance("starting")
    return folder
