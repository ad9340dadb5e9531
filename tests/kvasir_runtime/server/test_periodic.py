"""Work that fails is done again, and its log stays short."""

import asyncio

import pytest

from kvasir_runtime.server import periodic


async def repeated(*ends):
    """How often work is done that ends so, one after the other: with an error, or well."""
    done = []

    async def work():
        end = ends[len(done)]
        done.append(end)
        if end is not None:
            raise end

    await asyncio.wait_for(periodic.repeat(work, every_s=0.0, ended=lambda: len(done) == len(ends)), 60)
    return len(done)


async def test_work_that_fails_is_done_again(caplog):
    assert await repeated(None, ValueError("odd"), None, None) == 4
    (record,) = caplog.records
    assert record.exc_info[1].args == ("odd",)


async def test_the_same_error_is_logged_once_in_a_row(caplog):
    await repeated(*(ValueError("odd") for _ in range(9)), KeyError("other"), None, KeyError("other"))
    assert [str(record.exc_info[1]) for record in caplog.records] == ["odd", "'other'", "'other'"]


async def test_it_ends_when_it_is_cancelled():
    begun = asyncio.Event()

    async def work():
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(periodic.repeat(work, every_s=0.0, ended=lambda: False))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
