"""The pace of requests: a burst at once, then a steady rate in the order of asking."""

import asyncio

import pytest

from fakes.clock import FakeClock
from fakes.cluster import FakeCluster
from kvasir_kube.kinds import SERVICE
from kvasir_kube.rate_limiter import RateLimitedCluster, TokenBucket

WHERE = {"metadata": {"namespace": "default", "name": "web"}}


class Paced:
    """A bucket on a fake clock; `slept` are its waits."""

    def __init__(self, **rules):
        self.clock, self.slept = FakeClock(), []
        self.bucket = TokenBucket(**rules, clock=self.clock.steady, sleep=self.sleep)

    async def sleep(self, seconds):
        self.slept.append(round(seconds, 6))


@pytest.mark.parametrize(
    ("rules", "requests", "slept"),
    [
        ({"qps": 10.0, "burst": 3}, 3, []),
        ({"qps": 10.0, "burst": 3}, 5, [0.1, 0.2]),
        ({"qps": 2.0, "burst": 1}, 3, [0.5, 1.0]),
    ],
)
async def test_a_burst_passes_and_the_rest_follows_at_the_rate(rules, requests, slept):
    paced = Paced(**rules)
    for _ in range(requests):
        await paced.bucket.take()
    assert paced.slept == slept


async def test_a_rest_refills_no_more_than_a_burst():
    paced = Paced(qps=10.0, burst=2)
    paced.clock.advance(3600)
    for _ in range(3):
        await paced.bucket.take()
    assert paced.slept == [0.1]


async def test_every_verb_but_the_watch_takes_its_turn():
    paced, cluster = Paced(qps=1.0, burst=1), FakeCluster()
    throttled = RateLimitedCluster(cluster, paced.bucket)
    await throttled.apply(SERVICE, WHERE, manager="m")
    await throttled.get(SERVICE, "default", "web")
    await throttled.list(SERVICE)
    await throttled.merge(SERVICE, "default", "web", {"spec": {}}, manager="m")
    await throttled.delete(SERVICE, "default", "web")
    await throttled.create(SERVICE, WHERE)
    assert paced.slept == [1.0, 2.0, 3.0, 4.0, 5.0]
    stream = throttled.watch(SERVICE, resource_version="0")
    assert (await asyncio.wait_for(anext(stream), 60)).verb == "ADDED"
    await stream.aclose()
    assert len(paced.slept) == 5
