"""Gateways follow one another over real HTTP: what one sends, the other one knows; what cannot be followed is left."""

import asyncio
import contextlib
import random
import socket
import time
from dataclasses import dataclass

import aiohttp
import pytest
from aiohttp import web

from fakes.gateway import until
from kvasir_api import names
from kvasir_gateway.choose import ChoicePolicy
from kvasir_gateway.picker.peers import LOOK_S, PeerGateways
from kvasir_gateway.picker.placement_feed import MOST_WAITING_BYTES, PlacementFeed, may_listen
from kvasir_gateway.placements import PlacementEnd, RequestPlacement, TenantUse
from kvasir_gateway.rate_limits import RateLimits
from kvasir_gateway.router import EndpointRouter
from kvasir_kube import http_sites

TENANT = "models/team-a"
POD, LAST = "10.0.0.1:8000", "10.0.0.2:8000"


@dataclass(eq=False)
class Node:
    """A gateway as far as others see it."""

    feed: PlacementFeed
    router: EndpointRouter
    peers: PeerGateways
    url: str
    used: list[TenantUse]
    limits: RateLimits
    running: int = 0

    def run(self, running):
        """Let so many requests of a tenant run here, and the others know."""
        self.running = running
        self.feed.publish(TenantUse(tenant=TENANT, running=running))

    def known(self):
        """Requests that it knows others sent to the pod."""
        return self.router.elsewhere(POD)


class Gateways(contextlib.AsyncExitStack):
    """Gateways on loopback. urls: of all of them, as each finds them. runners: of their servers."""

    def __init__(self):
        super().__init__()
        self.urls, self.runners = [], []

    async def listen(self, handler, address="127.0.0.1", port=0):
        """A page of placements; its base URL."""
        application = web.Application()
        application.router.add_get(names.PATH_PLACEMENTS, handler)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        self.push_async_callback(runner.cleanup)
        self.runners.append(runner)
        await runner.setup()
        await http_sites.TcpSite(runner, address, port, reuse_address=True).start()
        return f"http://{address}:{runner.addresses[0][1]}"

    async def start(self, *at, look_s=LOOK_S):
        """One more gateway, which follows the others. at: address and port."""
        feed, limits = PlacementFeed(list), RateLimits()

        async def serve(request):
            return await feed.serve(request, [TenantUse(tenant=TENANT, running=node.running)] if node.running else [])

        url = await self.listen(serve, *at)
        self.callback(feed.close)
        self.urls.append(url)
        router = EndpointRouter(policy=ChoicePolicy(), draw=lambda: 0)
        used = []

        def take(gateway, use):
            used.append(use)
            limits.run_elsewhere(gateway, use.tenant, use.running)

        peers = PeerGateways(
            router,
            own=feed.gateway,
            found=lambda: self.urls,
            used=take,
            left=limits.gateway_left,
            clock=time.monotonic,
            look_s=look_s,
        )
        node = Node(feed, router, peers, url, used, limits)
        task = asyncio.create_task(peers.run())
        self.push_async_callback(_cancelled, task)
        return node


async def _cancelled(task):
    task.cancel()
    await asyncio.wait([task])


@pytest.fixture
async def gateways():
    async with Gateways() as made:
        yield made


async def met(*nodes):
    names_of = {node: {other.feed.gateway for other in nodes if other is not node} for node in nodes}
    await until(lambda: all(set(n.peers.followed.values()) == names_of[n] for n in nodes), "all follow all others")


def each_receives(nodes):
    """Whether all have had something of all others since these follow them: send it once more."""
    for node in nodes:
        node.feed.publish(RequestPlacement(id="r", address=node.url))
    return all(node.router.elsewhere(other.url) for node in nodes for other in nodes if other is not node)


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


async def test_what_runs_at_one_counts_at_the_others_also_what_came_before_until_it_leaves(gateways):
    one = await gateways.start()
    one.run(2)
    two = await gateways.start()
    await until(lambda: two.limits.running_elsewhere(TENANT) == 2, "what runs already is known")
    one.run(3)
    one.run(1)
    await until(lambda: two.limits.running_elsewhere(TENANT) == 1, "so is what has ended")
    gateways.urls.remove(one.url)
    await until(lambda: two.limits.running_elsewhere(TENANT) == 0, "nothing is left of it")


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


class Place:
    """An address at which a gateway runs from time to time, each time as another process."""

    def __init__(self):
        """At an address of the loopback network at which no other test listens or connects from."""
        address = ".".join(str(random.SystemRandom().randrange(1, 255)) for _ in range(3))
        with socket.create_server((f"127.{address}", 0)) as free:
            self.at = free.getsockname()
        self.url = "http://{}:{}".format(*self.at)
        self.found, self.node, self._process = [], None, Gateways()

    async def start(self):
        """Start a gateway, which finds what `found` lists."""
        self._process = Gateways()
        self.node = await self._process.start(*self.at, look_s=0.01)
        self._process.urls[:] = self.found

    def find(self, urls):
        """It finds these gateways from now on."""
        self.found = self._process.urls[:] = list(urls)

    async def stop(self, *, abruptly=False):
        """End it, with its connections."""
        for connection in self._process.runners[0].server.connections if abruptly else ():
            if connection.transport is not None:
                connection.transport.abort()
        self.node = None
        await self._process.aclose()


@pytest.fixture
async def new_place():
    """Makes places; what runs there ends with the test."""
    async with contextlib.AsyncExitStack() as stack:

        def make():
            stack.push_async_callback((place := Place()).stop)
            return place

        yield make


@pytest.mark.parametrize("seed", range(12))
async def test_no_gateway_is_lost_and_no_event_of_it_whatever_came_before(seed, new_place):
    """Gateways start and stop in any order, and find one another, and no longer, at any time."""
    draw = random.Random(seed)
    places = [new_place() for _ in range(draw.choice([2, 3]))]
    urls = [place.url for place in places]
    for _ in range(draw.randrange(15)):
        place, step = draw.choice(places), draw.choice(["run", "run", "find", "find", "close", "send"])
        if step == "find":
            place.find(draw.sample(urls, draw.randrange(len(urls) + 1)))
        elif step == "run" and place.node:
            await place.stop(abruptly=draw.random() < 0.5)
        elif step == "run":
            await place.start()
        elif step == "close" and place.node:
            place.node.feed.close()
        elif place.node:
            place.node.feed.publish(placed(f"{draw.random()}"))
            place.node.run(draw.randrange(4))
        await asyncio.sleep(draw.choice([0, 0, 0.001, 0.01, 0.03]))
    for place in places:
        place.find(urls)
        if place.node is None:
            await place.start()
    nodes = [place.node for place in places]
    await met(*nodes)
    await until(lambda: each_receives(nodes), "no connection ends any more")
    running = sum(node.running for node in nodes)
    known = lambda: all(node.limits.running_elsewhere(TENANT) == running - node.running for node in nodes)
    await until(known, "what runs at each is known to the others")
    uses = [TenantUse(tenant=TENANT, requests=number) for number in (1, 2, 3)]
    for node in nodes:
        for use in uses:
            node.feed.publish(RequestPlacement(id=f"last-{use.requests}", address=LAST))
            node.feed.publish(use)
        node.feed.publish(PlacementEnd(id="last-1"))

    def complete(node):
        counted = sorted(use.requests for use in node.used if use.requests)
        others = len(nodes) - 1
        return (node.router.elsewhere(LAST), counted) == (2 * others, sorted([1, 2, 3] * others))

    await until(lambda: all(complete(node) for node in nodes), "all have all of the others")


@pytest.mark.parametrize("said", ["nothing", "too deep", "the own name"])
async def test_an_address_is_followed_when_a_gateway_listens_there_whatever_answered_before(said, new_place):
    one, two, answered = new_place(), new_place(), asyncio.Event()
    await one.start()
    lines = {"nothing": "", "too deep": '{"gateway": "x", "y": ' + "[" * 60_000, "the own name": None}
    line = lines[said] if lines[said] is not None else f'{{"gateway": "{one.node.feed.gateway}"}}'

    async def serve(_request):
        answered.set()
        return web.Response(text=line + "\n")

    async with Gateways() as before:
        await before.listen(serve, *two.at)
        one.find([one.url, two.url])
        await answered.wait()
    two.find([one.url, two.url])
    await two.start()
    await met(one.node, two.node)


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
