"""Keys: once each, one worker per key, failures with a pause."""

import asyncio
from contextlib import asynccontextmanager

from kvasir_kube.errors import KubeError
from kvasir_operator.loop.dirty import Dirty

A, B = ("n", "a"), ("n", "b")


@asynccontextmanager
async def working(dirty, reconcile):
    task = asyncio.create_task(dirty.run(reconcile, workers=3))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_key_marked_often_is_reconciled_once():
    dirty, calls, done = Dirty(), [], asyncio.Event()

    async def reconcile(key):
        calls.append(key)
        if len(calls) == 2:
            done.set()

    for _ in range(5):
        dirty.mark(A)
        dirty.mark(B)
    async with working(dirty, reconcile), asyncio.timeout(5):
        await done.wait()
        await asyncio.sleep(0.02)
    assert sorted(calls) == [A, B]


async def test_a_key_marked_while_it_is_worked_on_comes_again_and_never_twice_at_once():
    dirty, busy, most, calls, done = Dirty(), 0, 0, 0, asyncio.Event()

    async def reconcile(key):
        nonlocal busy, most, calls
        busy += 1
        calls += 1
        most = max(most, busy)
        if calls == 1:
            dirty.mark(A, 0.0)
        await asyncio.sleep(0.02)
        busy -= 1
        if calls == 2:
            done.set()

    dirty.mark(A, 0.0)
    async with working(dirty, reconcile), asyncio.timeout(5):
        await done.wait()
    assert (most, calls) == (1, 2)


async def test_a_failure_pauses_longer_each_time_and_other_keys_go_on():
    now = 0.0
    dirty, calls, served = Dirty(lambda: now), [], asyncio.Event()

    async def reconcile(key):
        calls.append(key)
        if key == A:
            raise KubeError("forbidden", status=403)
        served.set()

    dirty.mark(A, 0.0)
    dirty.mark(B, 0.0)
    async with working(dirty, reconcile), asyncio.timeout(5):
        await served.wait()
        await asyncio.sleep(0.02)
        assert sorted(calls) == [A, B]
        assert dirty.oldest_s() < 0
        now = 1.0
        dirty.mark(B, 0.0)
        while calls.count(A) < 2:  # noqa: ASYNC110 - a look at plain data
            await asyncio.sleep(0.01)
    assert 0.7 < -dirty.oldest_s() < 1.3


async def test_oldest_key_is_known():
    now = 0.0
    dirty = Dirty(lambda: now)
    assert dirty.oldest_s() == 0.0
    dirty.mark(A, 1.0)
    now = 11.0
    assert dirty.oldest_s() == 10.0
