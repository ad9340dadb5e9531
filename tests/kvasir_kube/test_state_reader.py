"""Readings of pods that answer, are slow, answer nonsense, or too much."""

import asyncio
import gc
import time

import pytest
from aiohttp import web

from fakes.gateway import until
from fakes.stub_runtime import StubRuntime
from kvasir_api.prefix_digest import PAUSE_DOCUMENTS, WHOLE, FollowedPrefixes, PrefixSet
from kvasir_api.state import PrefixDigest
from kvasir_kube import http_sites
from kvasir_kube.http_connections import Exchange
from kvasir_kube.state_reader import MAX_BYTES, StateReader, url


@pytest.fixture
async def pods():
    """Runtime pods by what is wrong with their /state."""
    stubs = {name: await StubRuntime(name).start() for name in ("good", "future", "slow", "nonsense", "huge")}
    stubs["good"].set_state(running=3)
    stubs["future"].raw_state = b'{"schema": 9, "running": 4, "from_the_future": {"x": 1}}'
    stubs["slow"].hold_state = asyncio.Event()
    stubs["nonsense"].raw_state = b'{"running": "many"}'
    stubs["huge"].raw_state = b" " * (MAX_BYTES + 1) + b"{}"
    yield stubs
    stubs["slow"].hold_state.set()
    await asyncio.gather(*(stub.stop() for stub in stubs.values()))


def base(stub: StubRuntime) -> str:
    return f"http://127.0.0.1:{stub.ops_port}"


async def test_a_pod_without_a_sound_answer_is_no_reading(pods):
    targets = {name: base(stub) for name, stub in pods.items() if name != "slow"}
    targets["absent"] = f"{targets['good']}/absent"
    targets["refused"] = "http://127.0.0.1:1"
    targets["nowhere"] = "http://127.0.0.1:99999"
    async with StateReader() as reader:
        for _ in range(2):
            readings = await reader.states(targets, deadline_s=60.0)
            assert {name: reading.running for name, reading in readings.items()} == {"good": 3, "future": 4}
            assert await reader.states({"slow": base(pods["slow"])}, deadline_s=0.2) == {}


async def test_a_round_in_which_every_pod_answers_does_not_wait_for_its_deadline(pods):
    targets = {name: base(pods[name]) for name in ("good", "future", "nonsense")}
    async with StateReader() as reader:
        began = time.monotonic()
        assert set(await reader.states(targets, deadline_s=60.0)) == {"good", "future"}
        assert await reader.states({}, deadline_s=60.0) == {}
        assert time.monotonic() - began < 30.0


async def test_an_answer_that_comes_too_late_is_not_taken_for_the_next(pods):
    slow, targets = pods["slow"], {"slow": base(pods["slow"])}
    slow.set_state(running=1)
    async with StateReader() as reader:
        assert await reader.states(targets, deadline_s=0.2) == {}
        slow.hold_state.set()
        slow.set_state(running=2)
        readings = await reader.states(targets, deadline_s=60.0)
    assert readings["slow"].running == 2


def exchanges():
    """Ids of those that the collector would look at. By type, since what other tests left may warn when it is asked."""
    return {id(found) for found in gc.get_objects() if type(found) is Exchange}


async def test_a_pod_that_is_late_leaves_nothing_for_the_garbage_collector(pods):
    """Else each tick would leave a cycle for every silent pod."""
    slow, targets = pods["slow"], {"slow": base(pods["slow"])}
    gc.collect()
    gc.disable()
    before = exchanges()
    try:
        async with StateReader() as reader:
            slow.hold_state.set()
            assert set(await reader.states(targets, deadline_s=60.0)) == {"slow"}
            slow.hold_state.clear()
            assert await reader.states(targets, deadline_s=0.05) == {}
            await until(lambda: exchanges() <= before, "nothing is left when its connection has ended")
    finally:
        gc.enable()


async def test_a_drain_is_requested_and_reverted(pods):
    async with StateReader() as reader:
        agreed = [await reader.drain(base(pods["good"]), on=on, deadline_s=60.0) for on in (True, False)]
        refused = await reader.drain("http://127.0.0.1:1", on=True)
    assert (agreed, refused, pods["good"].drains) == ([True, True], False, ["POST", "DELETE"])


async def test_a_drain_does_not_wait_for_a_reading_of_the_same_pod(pods):
    async with StateReader() as reader:
        reading = asyncio.create_task(reader.states({"slow": base(pods["slow"])}, deadline_s=60.0))
        await asyncio.sleep(0)  # its connection is being opened
        assert await reader.drain(base(pods["slow"]), on=True, deadline_s=60.0)
        pods["slow"].hold_state.set()
        assert (await reading)["slow"].phase == "draining"


async def test_sets_of_prefixes_are_followed_and_read_as_a_whole_where_they_cannot_be(pods):
    """The stub returns what it was set to whatever is read, as a pod of another past would."""
    good, followed = pods["good"], {"good": FollowedPrefixes(), "refused": FollowedPrefixes()}
    targets = {"good": base(good), "refused": "http://127.0.0.1:1"}
    one, two = b"1" * 8, b"2" * 8
    both = PrefixDigest(sequence=2, entries=2, checksum=PrefixSet([one, two]).checksum, after=WHOLE, added=one + two)
    gone = PrefixDigest(sequence=3, entries=1, checksum=PrefixSet([two]).checksum, after=2, removed=one)
    async with StateReader() as reader:
        seen = []
        for digest in (both, gone, gone):
            good.set_state(instance="0123abcd", prefixes=digest)
            readings = await reader.states(targets, deadline_s=60.0, prefixes=followed)
            assert readings["good"].prefixes == digest
            seen.append((followed["good"].after, set(followed["good"].hashes)))
    assert seen == [(2, {one, two}), (3, {two}), (WHOLE, set())]
    assert good.state_queries == [
        "prefixes_after=-1&instance=",
        "prefixes_after=2&instance=0123abcd",
        "prefixes_after=3&instance=0123abcd",
    ]


async def test_a_pod_that_contradicted_itself_is_asked_for_nothing_for_a_while(pods):
    good, followed = pods["good"], {"good": FollowedPrefixes()}
    good.set_state(prefixes=PrefixDigest(sequence=1, entries=1, after=WHOLE, added=b"1" * 8))
    async with StateReader() as reader:
        for _ in range(PAUSE_DOCUMENTS + 2):
            await reader.states({"good": base(good)}, deadline_s=60.0, prefixes=followed)
    asked = "prefixes_after=-1&instance="
    assert good.state_queries == [asked, *[""] * PAUSE_DOCUMENTS, asked]


async def test_a_redirect_of_a_pod_is_not_followed(pods):
    """Else a pod could make the operator drain another one, or call what only the operator reaches."""
    victim = pods["good"]

    async def point(request):
        raise web.HTTPTemporaryRedirect(base(victim) + str(request.rel_url))

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", point)
    runner = web.AppRunner(application)
    await runner.setup()
    await http_sites.TcpSite(runner, "127.0.0.1", 0).start()
    pointing = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with StateReader() as reader:
        assert await reader.states({"pointing": pointing}, deadline_s=60.0) == {}
        assert await reader.gateway_states({"pointing": pointing}, deadline_s=60.0) == {}
        calls = [
            reader.drain(pointing, on=True),
            reader.drain(pointing, on=False),
            reader.introduce(pointing, {"x": ""}),
            reader.prefetch(pointing, "x", ""),
        ]
        assert await asyncio.gather(*calls) == [False] * 4
    await runner.cleanup()
    assert (victim.drains, victim.state_reads) == ([], 0)


async def test_the_set_of_a_pod_that_is_gone_is_forgotten_and_that_of_a_late_one_is_kept(pods):
    late, gone = pods["good"], await StubRuntime("gone").start()
    told = PrefixDigest(sequence=1, entries=1, checksum=PrefixSet([b"1" * 8]).checksum, after=WHOLE, added=b"1" * 8)
    followed = {"late": FollowedPrefixes(), "gone": FollowedPrefixes()}
    targets = {"late": base(late), "gone": base(gone)}
    for stub in (late, gone):
        stub.set_state(instance=stub.name, prefixes=told)
    async with StateReader() as reader:
        await reader.states(targets, deadline_s=60.0, prefixes=followed)
        assert [each.hashes for each in followed.values()] == [{b"1" * 8}] * 2
        late.hold_state = asyncio.Event()
        await gone.stop()
        assert await reader.states({"gone": targets["gone"]}, deadline_s=60.0, prefixes=followed) == {}
        assert await reader.states({"late": targets["late"]}, deadline_s=0.2, prefixes=followed) == {}
        late.hold_state.set()
    assert (followed["late"].hashes, followed["gone"].hashes) == ({b"1" * 8}, set())


def test_addresses_of_version_6_get_brackets():
    assert url("fd00::1", 8001, "/state") == "http://[fd00::1]:8001/state"
