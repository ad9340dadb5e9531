"""What the node posts as time goes by."""

import asyncio

import pytest

from fakes.cluster import FakeCluster
from kvasir_kube.errors import KubeError
from kvasir_local.node.api_kinds import LEASE, NODE
from kvasir_local.node.heartbeat import HEARTBEAT_S, RETRY_S, Heartbeat


class Life:
    """A heartbeat of which a test decides when each pause ends. pauses: so far."""

    def __init__(self):
        self.cluster, self.reports, self.pauses = FakeCluster(), 0, []
        self._paused, self._goes_on = asyncio.Queue(), asyncio.Queue()
        self.heartbeat = Heartbeat(self.cluster, "n", manager="m", report=self._report, sleep=self._sleep)

    async def mark(self, status):
        """What the API server has of the node."""
        node = {"metadata": {"name": "n"}, "status": {"conditions": [{"type": "Ready", "status": status}]}}
        await self.cluster.put(NODE, node)

    async def beat(self):
        """One more, to its end."""
        self._goes_on.put_nowait(None)
        self.pauses.append(await self._paused.get())

    async def began(self):
        self.pauses.append(await self._paused.get())

    async def _report(self):
        self.reports += 1
        await self.mark("True")

    async def _sleep(self, seconds):
        self._paused.put_nowait(seconds)
        await self._goes_on.get()


@pytest.fixture
async def life():
    made = Life()
    await made.mark("True")
    task = asyncio.create_task(made.heartbeat.run())
    await made.began()
    yield made
    task.cancel()
    await asyncio.wait([task])


async def test_a_node_that_is_known_as_ready_renews_its_lease_only(life):
    await life.beat()
    await life.beat()
    assert life.reports == 0
    assert {kind for _, kind, _ in life.cluster.writes} == {LEASE.plural}


@pytest.mark.parametrize("status", ["Unknown", "False"])
async def test_a_node_that_a_controller_has_marked_posts_itself_at_the_next_beat(life, status):
    await life.mark(status)
    await life.beat()
    assert life.reports == 1
    await life.beat()
    assert life.reports == 1


async def test_after_an_outage_the_node_tries_every_second_and_posts_itself_at_once(life):
    await life.mark("Unknown")
    life.cluster.errors["write"] = [KubeError("away"), KubeError("away")]
    for _ in range(3):
        await life.beat()
    assert life.pauses == [HEARTBEAT_S, RETRY_S, RETRY_S, HEARTBEAT_S]
    assert life.reports == 1
