"""Events of another thread: all of them, in their order, with few wake-ups."""

import asyncio
import threading

from fakes.clock import FakeClock
from kvasir_kube.kinds import POD
from kvasir_operator.loop.watch_events import TURN_S, WatchEvents


class StillLoop:
    """A loop that runs what it was given when the test says so."""

    def __init__(self) -> None:
        self.wakeups, self.calls = 0, []

    def call_soon(self, call):
        self.calls.append(call)

    def call_soon_threadsafe(self, call):
        self.wakeups += 1
        self.calls.append(call)

    def turn(self):
        calls, self.calls = self.calls, []
        for call in calls:
            call()


def test_one_wake_up_is_for_all_that_came_until_the_loop_has_its_turn():
    loop, taken = StillLoop(), []
    events = WatchEvents(loop, lambda _kind, verb, obj: taken.append((verb, obj["n"])))
    for number in range(3):
        events.put(POD, "MODIFIED", {"n": number})
    assert loop.wakeups == 1
    loop.turn()
    assert taken == [("MODIFIED", 0), ("MODIFIED", 1), ("MODIFIED", 2)]
    events.put(POD, "DELETED", {"n": 3})
    assert loop.wakeups == 2
    loop.turn()
    assert taken[3:] == [("DELETED", 3)]


def test_many_events_are_taken_in_one_turn_and_the_loop_has_its_own_after_a_while():
    """64 in a turn: with 1,000 services the objects of a restart's lists waited by the thousand, 100 MiB of them."""
    loop, clock, taken = StillLoop(), FakeClock(), []

    def take(_kind, _verb, obj):
        taken.append(obj["n"])
        if obj["n"] == 999:
            clock.advance(TURN_S)

    events = WatchEvents(loop, take, clock=clock.steady)
    for number in range(1002):
        events.put(POD, "", {"n": number})
    loop.turn()
    assert len(taken) == 1000
    events.put(POD, "", {"n": 1002})
    loop.turn()
    assert taken == list(range(1003))
    assert loop.wakeups == 1


def test_an_event_that_fails_loses_none_behind_it():
    loop, taken = StillLoop(), []

    def take(_kind, _verb, obj):
        if obj["n"] == 0:
            raise ValueError
        taken.append(obj["n"])

    events = WatchEvents(loop, take)
    for number in range(3):
        events.put(POD, "", {"n": number})
    while loop.calls:
        try:
            loop.turn()
        except ValueError:
            continue
    assert taken == [1, 2]


async def test_nothing_is_lost_between_two_threads():
    taken, all_there = [], asyncio.Event()

    def take(_kind, _verb, obj):
        taken.append(obj["n"])
        if len(taken) == 20_000:
            all_there.set()

    events = WatchEvents(asyncio.get_running_loop(), take)
    thread = threading.Thread(target=lambda: [events.put(POD, "", {"n": n}) for n in range(20_000)])
    thread.start()
    async with asyncio.timeout(60):
        await all_there.wait()
    thread.join()
    assert taken == list(range(20_000))
