"""Which replicas get the addresses of which peers and which keys, and how often."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from fakes.clock import FakeClock
from fakes.cluster import FakeCluster
from fakes.manifests import pod, service
from fakes.operator_bench import Bench
from fakes.readings import FakeReader
from kvasir_api import names
from kvasir_api.http_apis import new_instance
from kvasir_api.ops_tokens import TOLERANCE_S
from kvasir_api.sealed_keys import SealingKey, keys_digest
from kvasir_api.state import KvHostState, RuntimeState
from kvasir_kube.kinds import INFERENCE_SERVICE, POD, SECRET
from kvasir_kube.state_reader import unsigned
from kvasir_operator.desired.signing_keys import ROTATED_AFTER_S
from kvasir_operator.loop.introducer import MOST_HEIRS, Introducer, handoffs, introductions
from kvasir_operator.loop.ops_calls import CalledProcess, OpsCalls
from kvasir_operator.loop.signing_secret import SigningSecret
from kvasir_operator.observed.replica import Replica

A, B = ("team", "a"), ("team", "b")


def one(name, phase, *, reused=0, **fields):
    reading = RuntimeState(instance=f"i-{name}", reused_tokens=reused)
    number = name[1:]
    return Replica(**{"name": name, "ip": f"10.0.0.{number}", "phase": phase, "reading": reading, **fields})


def url(number):
    return f"http://10.0.0.{number}:8001"


def process(number):
    return CalledProcess(base=url(number), service=A, instance=f"i-r{number}")


def test_those_that_start_are_told_of_the_ready_ones_with_most_in_their_caches():
    ready = [one(f"r{n}", "ready", reused=100 * n) for n in (1, 2, 3, 4)]
    others = [one("r5", "loading"), one("r6", "draining"), one("r7", "failed"), one("r8", "starting", reading=None)]
    assert introductions([*ready, *others], A) == {process(5): (process(4), process(3), process(2))}
    assert introductions([one("r5", "loading")], A) == {}
    assert introductions([*ready, one("r5", "loading", ip="")], A) == {}
    assert introductions([*ready, one("r5", "loading", terminating=True)], A) == {}


def exchanging(name, phase="ready", *, reused=100, free=0, port=8002, **fields):
    reading = RuntimeState(
        instance=f"i-{name}", reused_tokens=reused, kv_transfer_port=port, kv_host=KvHostState(free_tokens=free)
    )
    return one(name, phase, **{"reading": reading, "revision": "a", **fields})


@pytest.mark.parametrize(
    ("replicas", "want"),
    [
        ([exchanging("r1", "draining"), exchanging("r2"), exchanging("r3")], {2: (1,), 3: (1,)}),
        ([exchanging("r1", "draining"), exchanging("r2", revision="b")], {}),
        ([exchanging("r1", "draining"), exchanging("r2", "loading"), exchanging("r3", drain_since=1.0)], {}),
        ([exchanging("r1", "draining", reused=0), exchanging("r2")], {}),
        ([exchanging("r1", "draining", port=0), exchanging("r2")], {}),
        ([exchanging("r1", "draining"), exchanging("r2", port=0), exchanging("r3", ip="")], {}),
        ([exchanging("r1", "draining", reading=None), exchanging("r2")], {}),
        ([exchanging("r1", "draining", terminating=True), exchanging("r2")], {2: (1,)}),
        # of several the one that holds most first
        ([exchanging("r1", "draining"), exchanging("r2", "draining", reused=200), exchanging("r3")], {3: (2, 1)}),
        ([exchanging("r1"), exchanging("r2")], {}),
    ],
)
def test_those_that_stay_fetch_from_those_of_their_revision_that_leave(replicas, want):
    found = handoffs(replicas, A)
    named = {heir: tuple(one.leaving for one in several) for heir, several in found.items()}
    assert named == {process(to): tuple(map(process, leaving)) for to, leaving in want.items()}


def test_only_so_many_fetch_from_one_that_leaves_those_with_most_room_on_their_hosts():
    staying = [exchanging(f"r{number}", free=number) for number in range(2, 15)]
    found = handoffs([exchanging("r1", "draining"), *staying], A)
    assert set(found) == {process(number) for number in range(15 - MOST_HEIRS, 15)}
    shares = [(one.share, one.shares) for (one,) in found.values()]
    assert shares == [(number, MOST_HEIRS) for number in range(MOST_HEIRS)], "each begins with another one"


async def test_one_that_leaves_is_named_once_to_each_that_stays_and_the_next_one_after_it():
    reader = FakeReader()
    introducer = Introducer(OpsCalls(reader))
    replicas = [exchanging("r1", "draining", reused=9), exchanging("r2", "draining"), exchanging("r3")]
    reader.deaf = {url(3)}
    async with running(introducer):
        for _ in range(2):
            introducer.found([("u1", A, replicas)])
            await turned()
        assert reader.prefetches == [(url(3), url(2))] * 2, "it did not confirm"
        reader.deaf.clear()
        for _ in range(4):
            introducer.found([("u1", A, replicas)])
            await turned()
        assert reader.prefetches[2:] == [(url(3), url(2)), (url(3), url(1))]
        introducer.found([("u1", A, [exchanging("r1"), exchanging("r3")])])  # it is wanted again
        await turned()
        introducer.found([("u1", A, [exchanging("r1", "draining"), exchanging("r3")])])
        await turned()
        assert reader.prefetches[4:] == [(url(3), url(1))]
        introducer.found([("u1", A, [exchanging("r1", "draining"), exchanging("r3"), exchanging("r4")])])
        await turned()
        assert (reader.prefetches[5:], reader.prefetch_shares[5:]) == ([(url(4), url(1))], [(1, 2)])


class WaitingReader(FakeReader):
    """Each introduction waits until `answers` says that the pods answer; `told` wakes the test."""

    def __init__(self) -> None:
        super().__init__()
        self.answers, self.told = asyncio.Event(), asyncio.Event()

    async def introduce(self, base, peers, *, sign=unsigned, deadline_s=1.0):
        confirmed = await super().introduce(base, peers, sign=sign, deadline_s=deadline_s)
        self.told.set()
        await self.answers.wait()
        return confirmed


@asynccontextmanager
async def running(introducer):
    task = asyncio.create_task(introducer.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def turned():
    """Let the introducer's task go on as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_each_process_is_told_once_and_one_that_did_not_hear_again():
    reader = FakeReader()
    introducer = Introducer(OpsCalls(reader))
    replicas = [one("r1", "ready"), one("r2", "loading"), one("r3", "loading")]
    reader.deaf = {url(3)}
    async with running(introducer):
        for _ in range(3):
            introducer.found([("u1", A, replicas), ("u2", B, [one("r9", "ready")])])
            await turned()
        assert [base for base, _ in reader.introduced] == [url(2), url(3), url(3), url(3)]
        assert {peers for _, peers in reader.introduced} == {(url(1),)}
        reader.introduced.clear()
        reader.deaf.clear()
        restarted = one("r2", "loading", reading=RuntimeState(instance="another"))
        introducer.found([("u1", A, [replicas[0], restarted])])
        await turned()
        assert reader.introduced == [(url(2), (url(1),))]


async def test_one_that_starts_for_longer_than_a_token_is_accepted_gets_its_peers_again():
    reader, clock = FakeReader(), FakeClock()
    introducer = Introducer(OpsCalls(reader), clock=clock.wall)
    async with running(introducer):
        for _ in range(3):
            introducer.found([("u1", A, [one("r1", "ready"), one("r2", "loading")])])
            await turned()
            clock.advance(TOLERANCE_S / 3)
    assert [base for base, _ in reader.introduced] == [url(2)] * 3


async def test_one_that_does_not_answer_holds_up_no_tick_and_is_told_by_one_at_a_time():
    reader = WaitingReader()
    introducer = Introducer(OpsCalls(reader))
    replicas = [one("r1", "ready"), one("r2", "loading")]
    async with running(introducer):
        introducer.found([("u1", A, replicas)])
        await turned()
        for _ in range(3):
            introducer.found([("u1", A, [*replicas, one("r3", "loading")])])
            await turned()
        assert [base for base, _ in reader.introduced] == [url(2)]
        reader.answers.set()
        await turned()
        assert [base for base, _ in reader.introduced] == [url(2), url(3)], "of what was found meanwhile the last"


async def keyed_calls(reader, clock):
    """Calls of an operator that has keys."""
    cluster = FakeCluster()
    await cluster.put(SECRET, {"metadata": {"namespace": "home", "name": names.SIGNING_SECRET}})
    keys = SigningSecret(cluster, namespace="home", clock=clock)
    await keys.refresh()
    return OpsCalls(reader, keys), keys


class Process:
    """A pod's process, as its `/state` and its keys are."""

    def __init__(self, name, **fields):
        self.key, self.has, self.name, self.fields = SealingKey(), (), name, {"ops_keys": "public", **fields}

    @property
    def replica(self):
        fields = {"sealing_key": self.key.public, "continuation_keys": keys_digest(self.has)}
        return one(self.name, "ready", reading=RuntimeState(instance=f"i-{self.name}", **fields), **self.fields)

    def take(self, sealed):
        self.has = self.key.opened(sealed, f"i-{self.name}")


async def test_processes_of_a_service_get_its_keys_and_those_that_lack_them_get_them_again():
    reader, clock = FakeReader(), FakeClock()
    calls, secret = await keyed_calls(reader, clock)
    introducer = Introducer(calls)
    mine, other = [Process("r1"), Process("r2")], Process("r3")
    untrusting, older = Process("r4", ops_keys=""), Process("r5", ops_keys=None)

    async def tick():
        reader.given.clear()
        theirs = [other.replica, untrusting.replica, older.replica, one("r6", "ready", ops_keys="public")]
        introducer.found([("u1", A, [one.replica for one in mine]), ("u2", B, theirs)])
        await turned()
        by_url = {url(process.name[1:]): process for process in (*mine, other)}
        for base, text in reader.given:
            by_url[base].take(text)
        return sorted(base for base, _ in reader.given)

    async with running(introducer):
        assert await tick() == [url(1), url(2), url(3)]
        assert mine[0].has == mine[1].has == secret.continuation_keys("u1") != other.has
        assert await tick() == []
        mine[1] = Process("r2")  # its container was started again
        assert await tick() == [url(2)]
        assert mine[0].has == mine[1].has
        before = mine[0].has
        clock.advance(ROTATED_AFTER_S)
        await secret.refresh()
        assert await tick() == [url(1), url(2), url(3)]
        assert mine[0].has[:1] == before, "the new one does not sign yet"
        assert len(mine[0].has) == 2


async def test_a_process_that_names_no_key_keeps_none_from_the_others():
    reader = FakeReader()
    calls, _ = await keyed_calls(reader, FakeClock())
    introducer = Introducer(calls)
    broken = one("r1", "ready", ops_keys="x", reading=RuntimeState(instance="i", sealing_key="no key"))
    async with running(introducer):
        introducer.found([("u1", A, [broken, Process("r2").replica])])
        await turned()
    assert [base for base, _ in reader.given] == [url(2)]


@pytest.mark.parametrize("first", [A, B])
async def test_a_pod_of_another_service_that_names_a_process_takes_nothing_from_it(first):
    """Neither its keys and peers, nor calls that it would take from that pod."""
    reader, clock = FakeReader(), FakeClock()
    calls, secret = await keyed_calls(reader, clock)
    introducer, key = Introducer(calls), SealingKey()
    mine = RuntimeState(instance=new_instance("team/a"), sealing_key=key.public)
    services = {
        A: ("u1", A, [one("r1", "loading", reading=mine, ops_keys="public"), one("r2", "ready")]),
        B: ("u2", B, [one("r3", "loading", reading=mine, ops_keys="public"), one("r4", "ready")]),
    }
    async with running(introducer):
        introducer.found([services.pop(first), *services.values()])
        await turned()
    assert dict(reader.introduced) == {url(1): (url(2),), url(3): (url(4),)}
    assert key.opened(dict(reader.given)[url(1)], mine.instance) == secret.continuation_keys("u1")
    called = [base for base, _ in (*reader.introduced, *reader.given)]
    signed = {base for base, header in zip(called, reader.signed, strict=True) if header}
    assert signed == {url(1)}, "what is signed for a process goes to its own service's pod alone"
    assert set(reader.peer_tokens.values()) == {""}, "nor do calls to peers that name no process of the service"


async def test_an_operator_ticks_while_a_replica_that_starts_does_not_answer():
    bench = Bench()
    bench.reader = reader = WaitingReader()
    bench.operator = bench.started()
    await bench.cluster.put(INFERENCE_SERVICE, service(model={"uri": "file:///srv/tiny", "inspect": "Never"}))
    for number, ready in enumerate((True, False)):
        ip = f"10.0.0.{number + 1}"
        await bench.cluster.put(POD, pod(f"p{number}", revision="r", ready=ready, ip=ip))
        bench.say(number, phase="ready" if ready else "warming", instance=f"i{number}")
    task = asyncio.create_task(bench.operator.run())
    try:
        async with asyncio.timeout(60):
            await bench.operator.resync.once()
            await reader.told.wait()
            before = bench.operator.scaler.ticked_at
            bench.clock.advance(2.0)
            await bench.operator.scaler.tick()
        assert bench.operator.scaler.ticked_at == before + 2.0
        assert reader.introduced == [(url(2), (url(1),))]
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert len(asyncio.all_tasks()) == 1, "it ended with the operator"
