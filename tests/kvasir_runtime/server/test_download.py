"""The model of a start and the one that drafts for it: how waiting for them ends, and which bytes are read."""

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from fakes import checkpoints, ggufs
from kvasir_api import names
from kvasir_api.options import ServeOptions
from kvasir_runtime import gguf
from kvasir_runtime.arriving import ArrivingFolder, Shards
from kvasir_runtime.fetch.arrival import Arrival
from kvasir_runtime.fetch.shared_cache import Recorder
from kvasir_runtime.server import download
from kvasir_runtime.server.console import Console
from kvasir_runtime.server.lifecycle import Lifecycle

MODEL, DRAFTER = "org/model", "org/drafter"
DRAFTER_BYTES = 10
FREE_S = 10.0


def test_a_start_that_ends_waits_for_its_draft_model_no_longer(tmp_path, monkeypatch):
    """Else the process would not end, since it waits for its threads."""
    monkeypatch.setenv(names.ENV_MODEL_CACHE_READ_ONLY, str(tmp_path))
    folder = tmp_path / "entry"
    folder.mkdir()
    Recorder(tmp_path, MODEL).whole(folder)
    coming = Recorder(tmp_path, DRAFTER)
    coming.progress(1, DRAFTER_BYTES)
    lifecycle = Lifecycle(lambda: 0.0)

    async def start():
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        options = ServeOptions(model=MODEL, speculation=DRAFTER)
        begun = asyncio.create_task(download.begun(options, lifecycle, Console("text")))
        while lifecycle.download_bytes != DRAFTER_BYTES:  # noqa: ASYNC110 -- its thread reports them
            await asyncio.sleep(0.01)
        begun.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await begun
        try:
            await asyncio.wait_for(asyncio.to_thread(lambda: None), FREE_S)
        finally:
            coming.whole(folder)  # frees the thread in any case

    asyncio.run(start())


@pytest.mark.parametrize("sent", ["of the file", "of another"])
def test_the_tokenizer_is_that_of_the_header_that_was_compared(tmp_path, sent):
    """What comes ahead of the file has no checksum: it is read again where the file begins otherwise."""
    checkpoint, folder = checkpoints.write(tmp_path / "checkpoint"), tmp_path / "real"
    folder.mkdir()
    whole, first = (
        ggufs.write(checkpoint, tmp_path / name / "model.gguf", tokenizer__chat_template=template)
        for name, template in (("whole", "of the file"), ("first", sent))
    )
    length = min(entry.start for entry in gguf.read(first).tensors.values())
    header, size = first.read_bytes()[:length], whole.stat().st_size
    coming = ArrivingFolder(folder, Shards(headers={whole.name: header}, sizes={whole.name: size}, first=whole.name))

    async def arrives():
        await asyncio.sleep(0)
        await asyncio.to_thread(lambda: None)  # behind the one that reads the header
        there = whole.rename(folder / whole.name)
        coming.arrived(there.name)
        return there

    async def loaded():
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        arrival = asyncio.create_task(arrives())
        model = download.DownloadedModel(folder=coming.path, whole=arrival, arrival=Arrival(None))
        return await download.load(model, ServeOptions(model=MODEL))

    found = asyncio.run(loaded())
    assert found.folder == folder / whole.name
    assert found.tokenizer.template.source == "of the file"
