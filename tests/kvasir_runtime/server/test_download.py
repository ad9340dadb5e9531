"""The model of a start and the one that drafts for it: how waiting for them ends."""

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor

from kvasir_api import names
from kvasir_api.options import ServeOptions
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
