"""Very many events, and watches that start again and again: what they cost in requests, reconciles and memory, and that
their thread ends."""

import asyncio
import contextlib
import gc
import pwd
import re
import threading
import tracemalloc

import kopf
import pytest

from fakes import kopf_api, virtual_loop
from fakes.cluster import FakeCluster
from fakes.operator_bench import LoopBench
from fakes.virtual_loop import elapse
from kvasir_kube import kinds
from kvasir_kube.client import Access
from kvasir_kube.errors import KubeError
from kvasir_kube.kinds import POD
from kvasir_operator import handlers
from kvasir_operator.loop.resync import WATCHED

PODS, EVENTS, BURST = 40, 8000, 200
MIB, TABLE = 1 << 20, 1 << 17


class Counting(FakeCluster):
    """asked: the verb of each request."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def _raise(self, verb):
        self.asked.append(verb)
        super()._raise(verb)


def reconciles(bench):
    text = bench.operator.telemetry.text().decode()
    return sum(map(float, re.findall(r"^kvasir_operator_reconciles_total\{.*\} (\S+)$", text, re.MULTILINE)))


@contextlib.asynccontextmanager
async def settled():
    """A service of many pods with nothing to do."""
    bench = LoopBench(Counting())
    await bench.put_service(replicas=PODS)
    async with bench.running():
        await elapse(5)
        await bench.put_pods(PODS)
        bench.watch()
        await elapse(120)
        assert bench.reason() == "AllReplicasReady"
        bench.cluster.asked.clear()
        yield bench


def remembered():
    """Bytes since tracing began. Not the interpreter's own table of interned texts, which counts all of the process: it
    grows by one large allocation, whatever of it is still used."""
    traces = tracemalloc.take_snapshot().traces
    tables = [t.size for t in traces if t.size >= TABLE and t.traceback[0].filename == kinds.__file__]
    return sum(trace.size for trace in traces) - sum(tables)


def test_a_storm_of_events_is_a_few_reconciles_and_no_request():
    async def story():
        async with settled() as bench:
            pods = list(bench.cluster.objects[POD.plural].values())
            version = max(int(pod["metadata"]["resourceVersion"]) for pod in pods)
            before = reconciles(bench)
            gc.collect()
            tracemalloc.start()
            for number in range(EVENTS):
                pod = pods[number % PODS]
                metadata = {
                    **pod["metadata"],
                    "resourceVersion": str(version + number + 1),
                    "annotations": {"example.com/heartbeat": str(number)},
                }
                bench.hear(POD, "MODIFIED", {**pod, "metadata": metadata})
                if number % BURST == 0:
                    await elapse(0.02)
            await elapse(10)
            gc.collect()
            grown = remembered()
            tracemalloc.stop()
            seconds = EVENTS / BURST * 0.02
            assert reconciles(bench) - before <= seconds / 0.05 + 10
            assert [verb for verb in bench.cluster.asked if verb != "list"] == []
            assert grown < MIB

    virtual_loop.run(story())


def test_watches_that_start_again_and_again_list_everything_once_in_three_seconds():
    """As behind an API server that restarts, or a proxy that cuts each of them."""

    async def story():
        async with settled() as bench:
            for _ in range(120):
                bench.watch()
                await elapse(0.5)
            lists = bench.cluster.asked.count("list")
            assert len(WATCHED) <= lists <= len(WATCHED) * (60 / 3 + 1)
            assert [verb for verb in bench.cluster.asked if verb != "list"] == []

    virtual_loop.run(story())


def test_kopf_finds_no_differences_for_handlers_that_there_are_not():
    """It would copy each object twice at each event."""
    settings = handlers._settings()
    storage = settings.persistence.diffbase_storage
    assert (storage.build(body=kopf.Body({"spec": {"a": 1}})), storage.fetch(body=kopf.Body({}))) == ({}, None)
    assert settings.watching.chunk_size == handlers.LIST_PAGE


def test_watches_begin_where_the_user_of_the_process_has_no_name(monkeypatch):
    """As 65532 in our images, and as any user that OpenShift gives."""

    def unknown(number):
        raise KeyError(f"getpwuid(): uid not found: {number}")

    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME", "POD_ID"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    stop, asked = threading.Event(), threading.Event()

    async def access():
        asked.set()
        stop.set()
        raise KubeError("no API server", status=503)

    with contextlib.suppress(KubeError):
        handlers.watch(lambda *_: None, namespace="", access=access, stop=stop)
    assert asked.is_set()


async def test_a_watch_that_dies_at_once_ends_the_thread_with_its_status():
    """Before anything has looked for its task. kopf ends by itself then, but for a thread of its own."""
    stop = threading.Event()
    with kopf_api.refusing(403) as server:

        async def access():
            return Access(server=server, ca_path="", certificate_path="", key_path="", token="", verify=False)

        watching = asyncio.to_thread(handlers.watch, lambda *_: None, namespace="", access=access, stop=stop)
        try:
            with pytest.raises(KubeError, match="made up") as raised:
                await asyncio.wait_for(asyncio.shield(running := asyncio.ensure_future(watching)), 60)
        finally:
            stop.set()
            await asyncio.wait({running})
    assert raised.value.status == 403


async def test_a_watch_that_loses_its_cancellation_is_cancelled_again(monkeypatch):
    monkeypatch.setattr(handlers, "END_S", 0.01)

    async def watcher():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    async def kopf_itself():
        task = asyncio.create_task(watcher(), name=f"{handlers.WATCHER}pods.v1")
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})

    await asyncio.wait_for(handlers._ended(asyncio.create_task(kopf_itself())), 60)
