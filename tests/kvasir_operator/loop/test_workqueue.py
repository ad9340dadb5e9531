"""Keys: once each, one worker per key, failures with a pause."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from kvasir_kube.errors import KubeError
from kvasir_operator.loop.workqueue import Workqueue

A, B = ("n", "a"), ("n", "b")


@asynccontextmanager
async def working(workqueue, reconcile):
    task = asyncio.create_task(workqueue.run(reconcile, workers=3))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_key_marked_often_is_reconciled_once():
    workqueue, calls, done = Workqueue(), [], asyncio.Event()

    async def reconcile(key):
        calls.append(key)
        if len(calls) == 2:
            done.set()

    for _ in range(5):
        workqueue.mark(A)
        workqueue.mark(B)
    async with working(workqueue, reconcile), asyncio.timeout(60):
        await done.wait()
        await asyncio.sleep(0.02)
    assert sorted(calls) == [A, B]


async def test_a_key_marked_while_it_is_worked_on_comes_again_and_never_twice_at_once():
    workqueue, busy, most, calls, done = Workqueue(), 0, 0, 0, asyncio.Event()

    async def reconcile(key):
        nonlocal busy, most, calls
        busy += 1
        calls += 1
        most = max(most, busy)
        if calls == 1:
            workqueue.mark(A, 0.0)
        await asyncio.sleep(0.02)
        busy -= 1
        if calls == 2:
            done.set()

    workqueue.mark(A, 0.0)
    async with working(workqueue, reconcile), asyncio.timeout(60):
        await done.wait()
    assert (most, calls) == (1, 2)


async def test_a_failure_pauses_longer_each_time_and_other_keys_go_on():
    now = 0.0
    workqueue, calls, served = Workqueue(lambda: now), [], asyncio.Event()

    async def reconcile(key):
        calls.append(key)
        if key == A:
            raise KubeError("forbidden", status=403)
        served.set()

    workqueue.mark(A, 0.0)
    workqueue.mark(B, 0.0)
    async with working(workqueue, reconcile), asyncio.timeout(60):
        await served.wait()
        await asyncio.sleep(0.02)
        assert sorted(calls) == [A, B]
        assert workqueue.oldest_s() < 0
        now = 1.0
        workqueue.mark(B, 0.0)
        while calls.count(A) < 2:  # noqa: ASYNC110 - a look at plain data
            await asyncio.sleep(0.01)
    assert 0.7 < -workqueue.oldest_s() < 1.3


async def test_oldest_key_is_known():
    now = 0.0
    workqueue = Workqueue(lambda: now)
    assert workqueue.oldest_s() == 0.0
    workqueue.mark(A, 1.0)
    now = 11.0
    assert workqueue.oldest_s() == 10.0


@pytest.mark.parametrize(
    ("failures", "retry_after_s", "news", "least", "most"),
    [
        (1, 0.0, True, 0.4, 0.6),  # the first pause is shorter than what news wait for at most
        (7, 0.0, True, 5.0, 5.0),
        (7, 0.0, False, 25.6, 38.4),
        (1, 20.0, True, 20.0, 24.0),
        (1, 20.0, False, 20.0, 24.0),
    ],
)
async def test_neither_news_nor_time_make_a_storm_of_retries(failures, retry_after_s, news, least, most):
    now, failed = 0.0, asyncio.Event()
    workqueue = Workqueue(lambda: now)
    calls = 0

    async def reconcile(_):
        nonlocal calls
        calls += 1
        failed.set()
        raise KubeError("busy", status=429, retry_after_s=retry_after_s)

    workqueue.mark(A, 0.0)
    async with working(workqueue, reconcile), asyncio.timeout(60):
        for number in range(failures):
            await failed.wait()
            failed.clear()
            await asyncio.sleep(0)
            if number + 1 < failures:
                now += 100.0
                workqueue.mark(A, 0.0)
        assert calls == failures
        for _ in range(10):
            workqueue.mark(A, 0.0, news=news)
        assert least <= -workqueue.oldest_s() <= most


@pytest.mark.parametrize(("news", "least", "most"), [(True, 5.0, 5.0), (False, 90.0, 100.0)])
async def test_a_pause_of_a_reconcile_outlasts_it_and_what_was_marked_before(news, least, most):
    paused = asyncio.Event()
    workqueue = Workqueue(lambda: 0.0)

    async def reconcile(key):
        workqueue.mark(key, 0.0)
        workqueue.pause(key, 100.0)
        paused.set()

    workqueue.mark(A, 0.0)
    async with working(workqueue, reconcile), asyncio.timeout(60):
        await paused.wait()
        await asyncio.sleep(0)
        assert 90.0 <= -workqueue.oldest_s() <= 100.0
        workqueue.mark(A, 0.0, news=news)
        assert least <= -workqueue.oldest_s() <= most
