"""Finds the model of a start, after a download if need be, whose bytes lifecycle and console have meanwhile, and reads
what the API needs of it.

Called by the process. The engine of a checkpoint in shards begins before all of them are there, and waits for each.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kvasir_api.forecast import readable
from kvasir_api.options import ServeOptions
from kvasir_runtime import arriving, source
from kvasir_runtime.fetch.arrival import Arrival
from kvasir_runtime.frontend import tokenizer
from kvasir_runtime.frontend.generation_config import generation_defaults
from kvasir_runtime.server.console import Console
from kvasir_runtime.server.lifecycle import Lifecycle


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadedModel:
    """folder: to load from, of which shards may still come. whole: the model's own folder, when all is there; it raises
    StartError. arrival: by which the download ends where the start does."""

    folder: Path
    whole: asyncio.Task[Path]
    arrival: Arrival


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedFiles:
    """What the API has of a model that is whole. defaults: of sampling fields. digest: where streams may be
    continued, else empty."""

    folder: Path
    tokenizer: tokenizer.Tokenizer
    defaults: Mapping[str, Any]
    digest: bytes


async def begun(options: ServeOptions, lifecycle: Lifecycle, console: Console) -> DownloadedModel:
    """The model as soon as an engine may load it; a draft model is fetched as well. Raises StartError."""
    loop = asyncio.get_running_loop()
    folder: asyncio.Future[Path] = loop.create_future()

    def show(done_bytes: int, total_bytes: int) -> None:
        message = f"downloading the model, {readable(done_bytes)} of {readable(total_bytes)}"
        lifecycle.download(done_bytes, total_bytes, message)
        if lifecycle.phase == "starting":
            console.show("starting", lifecycle.fraction, message=message)

    def on_bytes(done_bytes: int, total_bytes: int) -> None:
        """In the thread that fetches."""
        loop.call_soon_threadsafe(show, done_bytes, total_bytes)

    def on_begun(path: Path) -> None:
        loop.call_soon_threadsafe(folder.set_result, path)

    arrival, drafter = Arrival(on_begun), Arrival(None)
    fetching = asyncio.to_thread(source.resolve, options.model, options.revision, on_bytes, arrival)
    whole = asyncio.create_task(fetching)
    try:
        await asyncio.wait({folder, whole}, return_when=asyncio.FIRST_COMPLETED)
        path = folder.result() if folder.done() else whole.result()
        await asyncio.to_thread(source.resolve_drafter, options.speculation, on_bytes, drafter)
    except BaseException:
        arrival.abandon()
        drafter.abandon()  # else the process would wait for its thread
        raise
    lifecycle.advance("starting")
    return DownloadedModel(folder=path, whole=whole, arrival=arrival)


async def load(model: DownloadedModel, options: ServeOptions) -> LoadedFiles:
    """What the API needs, when all of the model is there. Raises StartError, as soon as one is known.

    The tokenizer of a GGUF file is in its header, which has no checksum before the file is whole.
    """
    read = partial(tokenizer.load, chat_template=options.chat_template)
    reading = asyncio.to_thread(arriving.loaded, model.folder, read)
    loaded, folder = await asyncio.gather(reading, model.whole)
    if not await asyncio.to_thread(arriving.is_confirmed, model.folder):
        loaded = await asyncio.to_thread(read, folder)
    defaults, digest = await asyncio.to_thread(_read, folder, options)
    return LoadedFiles(folder=folder, tokenizer=loaded, defaults=defaults, digest=digest)


def _read(folder: Path, options: ServeOptions) -> tuple[Mapping[str, Any], bytes]:
    """A checkpoint's defaults of sampling fields, and its digest where streams may be continued."""
    may_continue = options.continuation_key_file or options.ops_key_file
    digest = source.checkpoint_digest(folder) if may_continue else b""
    return generation_defaults(folder, options), digest
