"""Gateways follow one another over real HTTP: what one sends, the other one knows; what cannot be followed is left."""

import asyncio
import contextlib
import time
from dataclasses import dataclass

import aiohttp
import pytest
from aiohttp import web

from fakes.gateway import until
from kvasir_api import names
from kvasir_gateway.choose import ChoicePolicy
from kvasir_gateway.picker.peers import PeerGateways
from kvasir_gateway.picker.placement_feed import MOST_WAITING_BYTES, PlacementFeed, may_listen
from kvasir_gateway.placements import PlacementEnd, RequestPlacement, TenantUse
from kvasir_gateway.router import EndpointRouter

POD = "10.0.0.1:8000"


@dataclass
class Node:
    """A gateway as far as others see it."""

    feed: PlacementFeed
    router: EndpointRouter
    peers: PeerGateways
    url: str
    used: list[TenantUse]

    def known(self):
        """Requests that it knows others sent to the pod."""
        return self.router.elsewhere(POD)


class Gateways(contextlib.AsyncExitStack):
    """Gateways on loopback. urls: of all of them, as each finds them."""

    def __init__(self):
        super().__init__()
        self.urls = []

    async def listen(self, handler):
        """A page of placements; its base URL."""
        application = web.Application()
        application.router.add_get(names.PATH_PLACEMENTS, handler)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        self.push_async_callback(runner.cleanup)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    async def start(self):
        """One more gateway, which follows the others."""
        feed = PlacementFeed(list)
        url = await self.listen(feed.serve)
        self.callback(feed.close)
        self.urls.append(url)
        router = EndpointRouter(policy=ChoicePolicy(), draw=lambda: 0)
        used = []
        peers = PeerGateways(router, own=feed.gateway, found=lambda: self.urls, used=used.append, clock=time.monotonic)
        task = asyncio.create_task(peers.run())
        self.push_async_callback(_cancelled, task)
        return Node(feed, router, peers, url, used)


async def _cancelled(task):
    task.cancel()
    await asyncio.wait([task])


@pytest.fixture
async def gateways():
    async with Gateways() as made:
        yield made


async def met(*nodes):
    await until(lambda: all(len(node.peers.followed) == len(nodes) - 1 for node in nodes), "all follow all others")


def placed(name):
    return RequestPlacement(id=name, address=POD, uncached_tokens=5.0)


async def test_three_gateways_know_what_each_of_them_sent(gateways):
    nodes = [await gateways.start() for _ in range(3)]
    await met(*nodes)
    for number, node in enumerate(nodes):
        node.feed.publish(placed(f"r{number}"))
    await until(lambda: [node.known() for node in nodes] == [2, 2, 2], "each knows of two")
    nodes[0].feed.publish(PlacementEnd(id="r0"))
    await until(lambda: [node.known() for node in nodes] == [2, 1, 1], "the end is known")
    assert sorted(node.router.number for node in nodes) == [0, 1, 2]


async def test_what_one_counts_of_a_tenants_limits_the_others_count_too(gateways):
    one, two = [await gateways.start() for _ in range(2)]
    await met(one, two)
    use = TenantUse(tenant="models/team-a", requests=1, tokens=12.5)
    one.feed.publish(use)
    await until(lambda: two.used == [use], "it is known")
    assert one.used == []


async def test_a_gateway_that_leaves_takes_its_requests_along(gateways):
    one, two = [await gateways.start() for _ in range(2)]
    await met(one, two)
    one.feed.publish(placed("r"))
    await until(lambda: two.known() == 1, "the request is known")
    gateways.urls.remove(one.url)
    await until(lambda: two.known() == 0 and not two.peers.followed, "nothing is left of it")
    assert two.router.number == 0


async def test_a_feed_that_ends_is_followed_again(gateways):
    one, two = [await gateways.start() for _ in range(2)]
    await met(one, two)
    one.feed.publish(placed("r"))
    await until(lambda: two.known() == 1, "the request is known")
    one.feed.close()
    await until(lambda: two.known() == 0, "what is not followed counts no more")
    await met(one, two)
    one.feed.publish(placed("again"))
    await until(lambda: two.known() == 1, "it is followed again")


@pytest.mark.parametrize(
    "lines",
    [
        [b""],
        [b"\n"],
        [b"{}\n"],
        [b'{"gateway": 5}\n'],
        [b'{"gateway": "' + b"x" * 300 + b'"}\n'],
        [b'{"gateway": "bad"}\n', b'{"type": "placed"}\n'],
        [b'{"gateway": "bad"}\n', b"x" * (1 << 20)],
        [b'{"gateway": "bad"}\n', b'{"type": "placed", "id": "a", "address": "b"}\n' * 100],
    ],
    ids=["nothing", "empty", "no name", "number", "long name", "cut", "endless", "then nothing"],
)
async def test_what_is_no_gateway_is_left_and_the_others_are_followed(gateways, lines):
    async def serve(request):
        response = web.StreamResponse()
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            for line in lines:
                await response.write(line)
        return response

    gateways.urls.append(await gateways.listen(serve))
    one, two = [await gateways.start() for _ in range(2)]
    await until(lambda: one.feed.gateway in two.peers.followed.values(), "the good one is followed")
    one.feed.publish(placed("r"))
    await until(lambda: two.known() == 1, "the request is known")


async def test_a_listener_that_does_not_read_is_dropped_and_delays_no_other(gateways):
    one, two = [await gateways.start() for _ in range(2)]
    await met(one, two)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(one.url.rpartition(":")[2]))
    writer.write(f"GET {names.PATH_PLACEMENTS} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    await reader.readuntil(b"}\n")
    reader._transport.pause_reading()
    long = RequestPlacement(id="l", address=POD, route_hashes=b"12345678" * 4096)

    async def dropped():
        for _ in range(MOST_WAITING_BYTES // 8 // len(long.route_hashes)):
            one.feed.publish(long)
        return one.feed.num_listeners == 1

    await until(dropped, "only the one that reads is left")
    writer.close()
    await met(one, two)


async def test_no_more_than_so_many_may_listen(gateways):
    feed = PlacementFeed(list)
    gateways.callback(feed.close)
    url = await gateways.listen(feed.serve)
    async with aiohttp.ClientSession() as session:
        answers = [await session.get(url + names.PATH_PLACEMENTS) for _ in range(20)]
        assert [answer.status for answer in answers] == [200] * 16 + [503] * 4
        for answer in answers:
            answer.close()
        await until(lambda: feed.num_listeners == 0, "all are forgotten")


@pytest.mark.parametrize(
    ("address", "may"),
    [
        ("10.0.0.1", True),
        ("::ffff:10.0.0.1", True),
        ("fd00:0::1", True),
        ("127.0.0.1", True),
        ("::1", True),
        ("10.0.0.9", False),
        ("::ffff:10.0.0.9", False),
        ("fd00::9", False),
        ("", False),
    ],
)
def test_only_gateways_and_their_own_hosts_may_listen(address, may):
    assert may_listen(address, ["http://10.0.0.1:8081", "http://[fd00::1]:8081"]) == may


async def test_who_may_not_listen_takes_no_place(gateways):
    feed = PlacementFeed(lambda: ["http://10.0.0.1:8081"])
    gateways.callback(feed.close)

    async def serve(request):
        return await feed.serve(request.clone(remote=request.headers["from"]))

    url = await gateways.listen(serve)
    async with aiohttp.ClientSession() as session:
        for remote, status in (("10.0.0.2", 403), ("10.0.0.1", 200)):
            async with session.get(url + names.PATH_PLACEMENTS, headers={"from": remote}) as answer:
                assert (answer.status, feed.num_listeners) == (status, int(status == 200))
