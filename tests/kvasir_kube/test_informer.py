"""A informer follows what happens, relists when its place is too old, and goes on after errors."""

import asyncio
from contextlib import asynccontextmanager

from fakes.cluster import FakeCluster
from kvasir_kube.errors import KubeError
from kvasir_kube.informer import Informer
from kvasir_kube.kinds import POD


def pod(name, **labels):
    return {"metadata": {"namespace": "a", "name": name, "labels": labels}}


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the condition is a look at plain data
            await asyncio.sleep(0.005)


@asynccontextmanager
async def running(informer):
    task = asyncio.create_task(informer.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def names(informer):
    return sorted(name for _, name in informer.objects)


async def test_mirror_follows_list_and_watch():
    cluster, changes = FakeCluster(), []
    await cluster.put(POD, pod("one"))
    informer = Informer(cluster, POD, on_change=changes.append)
    async with running(informer):
        await informer.synced.wait()
        assert names(informer) == ["one"]
        await cluster.put(POD, pod("two"))
        await until(lambda: names(informer) == ["one", "two"])
        await cluster.drop(POD, "a", "one")
        await until(lambda: names(informer) == ["two"])
    assert changes == [("a", "one"), ("a", "two"), ("a", "one")]


async def test_what_the_projection_leaves_out_wakes_no_reader():
    cluster, changes = FakeCluster(), []

    def of_interest(obj):
        found = obj["metadata"]
        return {"metadata": {name: found[name] for name in ("namespace", "name", "labels")}}

    await cluster.put(POD, pod("one"))
    informer = Informer(cluster, POD, transform=of_interest, on_change=changes.append)
    async with running(informer):
        await informer.synced.wait()
        await cluster.put(POD, pod("one"))
        await cluster.put(POD, pod("one", app="x"))
        await until(lambda: informer.objects["a", "one"]["metadata"]["labels"])
    assert changes == [("a", "one"), ("a", "one")]


async def test_mirror_lists_again_when_its_place_is_too_old():
    cluster, changes = FakeCluster(), []
    await cluster.put(POD, pod("one"))
    informer = Informer(cluster, POD, on_change=changes.append)
    async with running(informer):
        await informer.synced.wait()
        cluster.expired = True
        del cluster.objects["pods"]["a", "one"]
        await cluster.wake()
        await until(lambda: not informer.objects)
    assert changes == [("a", "one"), ("a", "one")]


async def test_mirror_goes_on_after_an_error():
    cluster = FakeCluster()
    cluster.errors["list"] = [KubeError("refused", retry_after_s=0.0)]
    informer = Informer(cluster, POD, selector="app=x")
    async with running(informer):
        await informer.synced.wait()
        await cluster.put(POD, pod("one", app="x"))
        await cluster.put(POD, pod("other", app="y"))
        await until(lambda: names(informer) == ["one"])
