"""Who is told of whom, and how often."""

from fakes.readings import FakeReader
from kvasir_api.state import RuntimeState
from kvasir_operator.loop.introducer import Introducer, introductions
from kvasir_operator.observed.replica import Replica


def one(name, phase, *, reused=0, **fields):
    reading = RuntimeState(instance=f"i-{name}", reused_tokens=reused)
    number = name[1:]
    return Replica(**{"name": name, "ip": f"10.0.0.{number}", "phase": phase, "reading": reading, **fields})


def url(number):
    return f"http://10.0.0.{number}:8001"


def test_those_that_start_are_told_of_the_ready_ones_with_most_in_their_caches():
    ready = [one(f"r{n}", "ready", reused=100 * n) for n in (1, 2, 3, 4)]
    others = [one("r5", "loading"), one("r6", "draining"), one("r7", "failed"), one("r8", "starting", reading=None)]
    assert introductions([*ready, *others]) == {"i-r5": (url(5), (url(4), url(3), url(2)))}
    assert introductions([one("r5", "loading")]) == {}
    assert introductions([*ready, one("r5", "loading", ip="")]) == {}
    assert introductions([*ready, one("r5", "loading", terminating=True)]) == {}


async def test_each_process_is_told_once_and_one_that_did_not_hear_again():
    reader = FakeReader()
    introducer = Introducer(reader)
    service = [one("r1", "ready"), one("r2", "loading"), one("r3", "loading")]
    reader.deaf = {url(3)}
    for _ in range(3):
        await introducer.introduce([service, [one("r9", "ready")]])
    assert [base for base, _ in reader.introduced] == [url(2), url(3), url(3), url(3)]
    assert {peers for _, peers in reader.introduced} == {(url(1),)}
    reader.introduced.clear()
    reader.deaf.clear()
    restarted = one("r2", "loading", reading=RuntimeState(instance="another"))
    await introducer.introduce([[service[0], restarted]])
    assert reader.introduced == [(url(2), (url(1),))]
