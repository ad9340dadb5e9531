"""Who is reconciled after a tick: whoever's pods say something new, and nobody else."""

import asyncio

import pytest

from fakes.operator_bench import KEY, Bench


@pytest.fixture
def bench():
    return Bench()


@pytest.mark.parametrize("said", ["locked", "fallback", "kernels", "device"])
async def test_what_a_pod_says_of_itself_is_looked_at_when_it_comes_and_when_it_goes(bench, said):
    """Also in a service that is settled, which nothing else brings to anybody's mind."""
    await bench.put_service()
    await bench.turn()
    await bench.put_pods(1)
    for _ in range(3):
        await bench.turn()
    await due(bench)
    for fields in ({said: "a word"}, {}):
        bench.say(0, **fields)
        await bench.operator.scaler.tick()
        assert await due(bench) == [KEY]
        await bench.operator.scaler.tick()
        assert await due(bench) == []


async def due(bench):
    """Services whose turn it is now, which are then as reconciled."""
    found = []

    async def note(name):
        found.append(name)

    bench.clock.advance(0.1)
    working = asyncio.create_task(bench.operator.workqueue.run(note))
    for _ in range(5):
        await asyncio.sleep(0)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    return found
