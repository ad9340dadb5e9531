"""Lists beside watches: what was deleted is gone, whichever of them is late."""

import asyncio

import pytest

from fakes.clock import FakeClock
from fakes.cluster import FakeCluster
from fakes.manifests import pod
from kvasir_api import names
from kvasir_kube import kinds
from kvasir_kube.kinds import POD, labels
from kvasir_operator import handlers
from kvasir_operator.loop.resync import STALE_WATCH_S, Resync
from kvasir_operator.loop.store import Store
from kvasir_operator.loop.workqueue import Workqueue

P0 = ("default", "p0")


class Bench:
    def __init__(self, cluster=None):
        self.cluster, self.clock, self.store = cluster or FakeCluster(), FakeClock(), Store()
        self.workqueue = Workqueue(self.clock.steady)
        self.resync = Resync(self.cluster, self.store, self.workqueue, clock=self.clock, after_s=0.01)
        self.tell = handlers.store_events(self.store, self.workqueue, self.resync)


async def test_a_list_that_was_on_its_way_brings_nothing_back():
    """The server reads the list, deletes the pod, and the watch is faster."""

    class Slow(FakeCluster):
        async def list(self, kind, namespace="", selector="", **given):
            read = await super().list(kind, namespace, selector, **given)
            if kind is POD and bench.resync.synced and P0 in self.objects[POD.plural]:
                gone = self.stored(POD, *P0)
                await self.drop(POD, *P0)
                bench.tell(POD, "DELETED", gone)
            return read

    bench = Bench(Slow())
    await bench.cluster.put(POD, pod("p0", revision="r"))
    await bench.resync.once()
    assert bench.store.get(POD, P0) is not None
    await bench.resync.once()
    assert bench.store.get(POD, P0) is None
    bench.clock.advance(STALE_WATCH_S + 1)
    assert bench.resync.stale_watches() == ""


async def test_an_object_that_is_made_again_after_its_end_is_known():
    bench = Bench()
    first = await bench.cluster.put(POD, pod("p0", revision="r"))
    bench.tell(POD, "ADDED", first)
    bench.tell(POD, "DELETED", first)
    bench.tell(POD, "ADDED", await bench.cluster.put(POD, pod("p0", revision="r")))
    assert bench.store.get(POD, P0) is not None


async def test_ends_are_not_kept_for_ever():
    bench = Bench()
    old = await bench.cluster.put(POD, pod("p0", revision="r"))
    bench.tell(POD, "DELETED", old)
    assert not bench.store.put(POD, old)
    bench.store.age()
    assert not bench.store.put(POD, old)
    bench.store.age()
    assert bench.store.put(POD, old)


@pytest.mark.parametrize("kopf_says_so", [True, False])
async def test_what_was_deleted_while_there_was_no_watch_is_found_soon(kopf_says_so):
    """By the watch's own list of another object, or by its new start, where there is nothing to list."""
    bench = Bench()
    await bench.cluster.put(POD, pod("p0", revision="r"))
    await bench.resync.once()
    await bench.cluster.drop(POD, *P0)
    running = asyncio.create_task(bench.resync.run())
    if kopf_says_so:
        bench.tell(POD, "", await bench.cluster.put(POD, pod("p1", revision="r")))
    else:
        bench.resync.began()
    async with asyncio.timeout(60):
        while bench.store.get(POD, P0) is not None:  # noqa: ASYNC110 - a look at plain data
            await asyncio.sleep(0.005)
    running.cancel()
    await asyncio.wait({running})
    bench.clock.advance(STALE_WATCH_S + 1)
    assert bench.resync.stale_watches() == "", "no watch owes what was gone before it began"


@pytest.mark.parametrize("ended", [False, True])
async def test_what_an_etcd_that_was_restored_has_replaces_what_was_newer(ended):
    """Versions go back to those of the backup, with which it goes on."""
    bench = Bench()
    old = await bench.cluster.put(POD, pod("p0", revision="old"))
    bench.tell(POD, "ADDED", old)
    new = await bench.cluster.put(POD, pod("p0", revision="new"))
    bench.tell(POD, "MODIFIED", new)
    await bench.cluster.put(POD, pod("p1", revision="new"))
    await bench.resync.once()
    if ended:
        bench.tell(POD, "DELETED", new)
    bench.cluster.objects[POD.plural] = {P0: old}
    await bench.resync.once()
    found = bench.store.get(POD, P0)
    assert found is not None
    assert labels(found)[names.LABEL_REVISION] == "old"
    assert bench.store.get(POD, ("default", "p1")) is None
    later = {**old, "metadata": {**old["metadata"], "resourceVersion": str(kinds.resource_version(old) + 1)}}
    assert bench.store.put(POD, later), "what a watch brings after that"
    bench.clock.advance(STALE_WATCH_S + 1)
    assert "pods default/p0" in bench.resync.stale_watches(), (
        "a watch that waits for the versions before is started again"
    )
