"""The stream of clusters, to a client that answers as Envoy does: each change once, and what Envoy accepts counts."""

import asyncio
import time

import grpc.aio
import pytest

from kvasir_gateway.choose import ChoicePolicy
from kvasir_gateway.envoy.bootstrap import PICKER_SOCKET
from kvasir_gateway.envoy.clusters import CLUSTER_TYPE, cluster, encoded
from kvasir_gateway.picker.cluster_discovery import SERVICE, ClusterDiscovery
from kvasir_gateway.picker.ext_proc_server import ExtProcServer
from kvasir_gateway.picker.metrics import GatewayMetrics
from kvasir_gateway.picker.picker import Picker
from kvasir_gateway.picker.request_holder import RequestHolder
from kvasir_gateway.picker.request_parser import RequestBounds
from kvasir_gateway.proto import discovery_pb2 as pb

DEADLINE_S = 60


def made(**addresses):
    return {name: encoded(cluster(name, found)) for name, found in addresses.items()}


ONE, TWO = made(a=["10.0.0.1:1"], b=["10.0.0.2:1"]), made(a=["10.0.0.1:1"], b=["10.0.0.3:1"])
EMPTY = made(a=[], b=["10.0.0.2:1"])


class Envoy:
    """The other end of a stream."""

    def __init__(self, call):
        self._call = call
        self._nonce = ""

    async def connect(self, **versions):
        await self._call.write(pb.DeltaDiscoveryRequest(type_url=CLUSTER_TYPE, initial_resource_versions=versions))

    async def read(self):
        """Names of the clusters that the next response updates, and of those that it removes."""
        async with asyncio.timeout(DEADLINE_S):
            response = await self._call.read()
        assert response.type_url == CLUSTER_TYPE
        self._nonce = response.nonce
        return sorted(one.name for one in response.resources), list(response.removed_resources)

    async def answer(self, error="", nonce=None):
        detail = pb.Status(code=13, message=error) if error else None
        await self._call.write(pb.DeltaDiscoveryRequest(response_nonce=nonce or self._nonce, error_detail=detail))

    async def take(self):
        found = await self.read()
        await self.answer()
        return found

    def leave(self):
        self._call.cancel()


class Served:
    """A served discovery. reported: what it has reported, oldest first."""

    def __init__(self, channel):
        self._channel = channel
        self.discovery = ClusterDiscovery(lambda names: self.reported.put_nowait((set(names), self.confirmed)))
        self.reported = asyncio.Queue()

    @property
    def confirmed(self):
        return self.discovery.confirmed

    def envoy(self):
        method = self._channel.stream_stream(
            f"/{SERVICE}/DeltaClusters",
            request_serializer=pb.DeltaDiscoveryRequest.SerializeToString,
            response_deserializer=pb.DeltaDiscoveryResponse.FromString,
        )
        return Envoy(method())

    async def report(self):
        async with asyncio.timeout(DEADLINE_S):
            return await self.reported.get()

    async def until(self, *names):
        """Read reports until Envoy has confirmed, and these clusters are usable."""
        while await self.report() != (set(names), True):
            pass


@pytest.fixture
async def served(tmp_path):
    async with grpc.aio.insecure_channel(f"unix:{tmp_path / 'socket'}") as channel:
        found, server = Served(channel), grpc.aio.server()
        server.add_generic_rpc_handlers((found.discovery.handler(),))
        server.add_insecure_port(f"unix:{tmp_path / 'socket'}")
        await server.start()
        yield found
    await server.stop(None)


async def connected(served, clusters=ONE):
    """An Envoy that has these."""
    envoy = served.envoy()
    await envoy.connect()
    served.discovery.publish(clusters)
    await envoy.take()
    await served.until(*(name for name, one in clusters.items() if one.reachable))
    return envoy


async def test_an_envoy_that_connects_first_awaits_the_first_clusters(served):
    envoy = served.envoy()
    await envoy.connect()
    served.discovery.publish(ONE)
    assert await envoy.read() == (["a", "b"], [])
    assert await served.report() == (set(), False), "nothing counts before Envoy has it"
    await envoy.answer()
    await served.until("a", "b")


async def test_of_a_change_only_what_differs_is_sent(served):
    envoy = await connected(served)
    served.discovery.publish(TWO)
    assert await envoy.take() == (["b"], [])
    served.discovery.publish(made(a=["10.0.0.1:1"], c=[]))
    assert await envoy.take() == (["c"], ["b"])
    await served.until("a")
    served.discovery.publish(TWO)
    assert await envoy.take() == (["b"], ["c"])
    await served.until("a", "b")


async def test_a_cluster_is_usable_while_a_change_of_it_is_on_its_way_and_not_without_an_address(served):
    envoy = await connected(served)
    served.discovery.publish(TWO)
    await envoy.take()
    assert await served.report() == ({"a", "b"}, True)
    served.discovery.publish(EMPTY)
    assert await envoy.take() == (["a", "b"], [])
    assert await served.report() == ({"b"}, True)
    served.discovery.publish(ONE)
    assert await envoy.read() == (["a"], [])
    assert served.reported.empty(), "Envoy has no address of a"
    await envoy.answer()
    assert await served.report() == ({"a", "b"}, True)


async def test_an_envoy_that_has_all_gets_an_answer_without_clusters(served):
    """The picker is new, and Envoy goes on with what it had."""
    served.discovery.publish(ONE)
    envoy = served.envoy()
    await envoy.connect(a=ONE["a"].version, b="of before", gone="1")
    assert await served.report() == ({"a"}, False)
    assert await envoy.take() == (["b"], ["gone"])
    await served.until("a", "b")
    envoy.leave()
    again = served.envoy()
    await again.connect(**{name: one.version for name, one in ONE.items()})
    assert await again.take() == ([], [])
    await served.until("a", "b")


async def test_changes_while_an_answer_is_awaited_come_together(served):
    envoy = await connected(served)
    served.discovery.publish(made(a=[], b=["10.0.0.2:1"]))
    assert await envoy.read() == (["a"], [])
    served.discovery.publish(made(a=["10.0.0.9:1"], b=["10.0.0.2:1"]))
    served.discovery.publish(made(a=["10.0.0.9:1"], b=["10.0.0.9:1"]))
    await envoy.answer(nonce="of another response")
    await envoy.answer()
    assert await envoy.take() == (["a", "b"], [])
    await served.until("a", "b")


async def test_a_change_that_is_undone_before_it_is_sent_is_reported_as_undone(served):
    """SyncLoops forgot the cluster when it was without an address."""
    await connected(served)
    served.discovery.publish(EMPTY)
    served.discovery.publish(ONE)
    assert await served.report() == ({"a", "b"}, True)


async def test_one_rejected_cluster_delays_no_other_and_is_not_sent_again(served, caplog):
    envoy = served.envoy()
    await envoy.connect()
    served.discovery.publish(ONE)
    await envoy.read()
    await envoy.answer("one of them")
    assert await envoy.take() == (["a"], [])
    assert await envoy.read() == (["b"], [])
    await envoy.answer("no such file")
    await served.until("a")
    ours = [record for record in caplog.records if record.name.startswith("kvasir_gateway")]
    assert [record.message for record in ours if record.levelname == "ERROR"] == [
        "Envoy rejected cluster b: no such file"
    ]
    served.discovery.publish(ONE | made(c=[]))
    assert await envoy.take() == (["c"], [])
    served.discovery.publish(TWO | made(c=[]))
    assert await envoy.take() == (["b"], [])
    await served.until("a", "b")


async def test_a_rejected_change_leaves_what_envoy_had(served):
    envoy = await connected(served)
    served.discovery.publish(TWO)
    await envoy.read()
    await envoy.answer("no")
    assert await served.report() == ({"a", "b"}, True)


async def test_a_new_envoy_has_nothing_until_it_answers(served):
    before = await connected(served)
    after = served.envoy()
    await after.connect()
    assert await served.report() == (set(), False)
    before.leave()
    assert await after.take() == (["a", "b"], [])
    await served.until("a", "b")


async def test_an_envoy_with_many_clusters_connects_where_bodies_are_small(tmp_path):
    """Its first message names all that it has, and is longer than any request may be."""
    picker = Picker(
        metrics=GatewayMetrics(),
        clock=time.monotonic,
        draw=lambda: 0,
        policy=ChoicePolicy(),
        bounds=RequestBounds(max_body_bytes=1 << 10),
    )
    async with grpc.aio.insecure_channel(f"unix:{tmp_path / PICKER_SOCKET}") as channel:
        served = Served(channel)
        server = ExtProcServer(
            picker, RequestHolder(picker), served.discovery, directory=tmp_path, max_body_bytes=1 << 10
        )
        await server.start()
        served.discovery.publish(ONE)
        gone = {f"namespace-{number}.{'s' * 63}": "0123456789abcdef" for number in range(2000)}
        envoy = served.envoy()
        await envoy.connect(**gone)
        updated, removed = await envoy.take()
        assert (updated, set(removed)) == (["a", "b"], gone.keys())
        await served.until("a", "b")
    await server.stop(0)
