"""Candidates for one Lease on a cluster in memory: in every order of events at most one may write."""

import asyncio

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fakes.clock import FakeClock
from fakes.cluster import FakeCluster
from fakes.virtual_loop import LoopClock, run
from kvasir_kube.errors import KubeError
from kvasir_kube.kinds import LEASE, SERVICE
from kvasir_operator.loop.leader import FencedCluster, Leader, LeaseLostError

NAMES = ("a", "b", "c")
WHERE = ("kvasir-system", "kvasir-operator")


class SlowCluster(FakeCluster):
    """Writes that take time: the clock moves between the moment they are sent and the moment they are answered."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock, self.before_s, self.after_s, self.lost = clock, 0.0, 0.0, False

    async def _store(self, kind, obj):
        self._clock.advance(self.before_s)
        stored = await super()._store(kind, obj)
        self._clock.advance(self.after_s)
        if self.lost:
            raise KubeError("the answer was lost")
        return stored


def candidate(cluster: FakeCluster, clock: FakeClock, me: str) -> Leader:
    return Leader(cluster, namespace=WHERE[0], name=WHERE[1], me=me, clock=clock)


class Election(RuleBasedStateMachine):
    """Candidates try, crash, leave and lose their connection in any order, while time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = FakeClock()
        self.cluster = SlowCluster(self.clock)
        self.leaders = {me: candidate(self.cluster, self.clock, me) for me in NAMES}
        self.lives = 0

    @rule(me=st.sampled_from(NAMES), before=st.floats(0, 6), after=st.floats(0, 6), lost=st.booleans())
    def try_(self, me: str, before: float, after: float, lost: bool) -> None:
        self.cluster.before_s, self.cluster.after_s, self.cluster.lost = before, after, lost
        self.loop.run_until_complete(self.leaders[me].attempt())

    @rule(me=st.sampled_from(NAMES))
    def cut_off(self, me: str) -> None:
        held = self.leaders[me].held
        self.cluster.errors["get"] = [KubeError("no route")]
        self.loop.run_until_complete(self.leaders[me].attempt())
        assert self.leaders[me].held == held

    @rule(me=st.sampled_from(NAMES))
    def leave(self, me: str) -> None:
        self.cluster.before_s, self.cluster.after_s, self.cluster.lost = 0.0, 0.0, False
        self.loop.run_until_complete(self.leaders[me].release())
        assert not self.leaders[me].held

    @rule(me=st.sampled_from(NAMES))
    def crash(self, me: str) -> None:
        self.lives += 1
        self.leaders[me] = candidate(self.cluster, self.clock, f"{me}{self.lives}")

    @rule(seconds=st.floats(0, 30))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(seconds=st.floats(-7200, 7200))
    def correct_the_wall_clock(self, seconds: float) -> None:
        self.clock.jump(seconds)

    @invariant()
    def at_most_one_leads(self) -> None:
        assert sum(leader.held for leader in self.leaders.values()) <= 1

    def teardown(self) -> None:
        self.loop.close()


TestElection = Election.TestCase
TestElection.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


async def test_a_dead_leader_is_followed_and_counts() -> None:
    clock, cluster = FakeClock(), FakeCluster()
    first, second = candidate(cluster, clock, "first"), candidate(cluster, clock, "second")
    await first.attempt()
    assert await second.attempt() == "first holds it"
    clock.advance(14)
    await second.attempt()
    assert not second.held
    clock.advance(1)
    assert "has not renewed it for 15 s" in await second.attempt()
    assert second.held
    spec = cluster.stored(LEASE, *WHERE)["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("second", 1)
    assert await first.attempt() == "second holds it"
    assert not first.held


async def test_a_lease_that_was_given_back_is_taken_at_once() -> None:
    clock, cluster = FakeClock(), FakeCluster()
    first, second = candidate(cluster, clock, "first"), candidate(cluster, clock, "second")
    await first.attempt()
    await first.release()
    await second.attempt()
    assert second.held


async def test_a_process_that_stood_still_writes_nothing() -> None:
    clock, cluster = FakeClock(), FakeCluster()
    leader = candidate(cluster, clock, "first")
    await leader.attempt()
    fenced = FencedCluster(cluster, leader)
    obj = {"metadata": {"namespace": "default", "name": "web"}}
    await fenced.apply(SERVICE, obj, manager="m")
    before = list(cluster.writes)
    clock.advance(60)
    with pytest.raises(LeaseLostError):
        await fenced.apply(SERVICE, obj, manager="m")
    with pytest.raises(LeaseLostError):
        await fenced.create(SERVICE, obj)
    with pytest.raises(LeaseLostError):
        await fenced.merge(SERVICE, "default", "web", {}, manager="m")
    with pytest.raises(LeaseLostError):
        await fenced.delete(SERVICE, "default", "web")
    assert cluster.writes == before
    assert await fenced.get(SERVICE, "default", "web")
    assert (await fenced.list(SERVICE)).items


class StuckCluster(FakeCluster):
    """Writes but those of the Lease are answered after a while; one that is given up before is not carried out."""

    answers_s = 14.0

    async def create(self, kind, obj, *, manager=""):
        if kind is not LEASE:
            await asyncio.sleep(self.answers_s)
        return await super().create(kind, obj, manager=manager)


@pytest.mark.parametrize(("renewed_after_s", "written"), [(None, False), (6.0, True)])
def test_a_write_on_its_way_is_given_up_when_the_lease_is_lost(renewed_after_s, written) -> None:
    """The client waits 15 s for an answer, and another candidate may lead 15 s after the last renewal."""

    async def scenario() -> tuple[bool, float]:
        loop = asyncio.get_running_loop()
        cluster = StuckCluster()
        leader = candidate(cluster, LoopClock(loop), "first")  # type: ignore[arg-type]  # it cannot be moved by hand
        await leader.attempt()
        began = loop.time()
        write = asyncio.create_task(FencedCluster(cluster, leader).create(SERVICE, {"metadata": {"name": "web"}}))
        if renewed_after_s is not None:
            await asyncio.sleep(renewed_after_s)
            await leader.attempt()
        await asyncio.wait({write})
        ended_s = loop.time() - began
        await asyncio.sleep(StuckCluster.answers_s)
        if written:
            write.result()
        else:
            with pytest.raises(LeaseLostError):
                write.result()
        return SERVICE.plural in cluster.objects, ended_s

    assert run(scenario()) == (written, 14.0 if written else 10.0)
