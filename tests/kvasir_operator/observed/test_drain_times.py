"""How long a replica drains, whatever the wall clock does meanwhile."""

import pytest

from fakes.clock import FakeClock
from kvasir_operator.observed import drain_times
from kvasir_operator.observed.replica import Replica


def drained_for(known, clock, since, uid="u"):
    replicas = (Replica(name="a", uid=uid, phase="draining", drain_since=since),)
    found = drain_times.followed(known, replicas, wall=clock.wall(), steady=clock.steady())
    (measured,) = drain_times.measured(found, replicas, steady=clock.steady())
    return found, measured.draining_s


@pytest.mark.parametrize("jump", [-86_400.0, -1.0, 0.0, 1.0, 86_400.0])
def test_a_corrected_clock_neither_ends_nor_prolongs_a_drain(jump):
    clock = FakeClock()
    known, seconds = drained_for({}, clock, clock.wall())
    assert seconds == 0
    clock.advance(3.0)
    known, seconds = drained_for(known, clock, clock.wall() - 3.0)
    assert seconds == 3
    clock.jump(jump)
    clock.advance(2.0)
    _, seconds = drained_for(known, clock, clock.wall() - 5.0 - jump)
    assert seconds == 5


def test_another_process_goes_on_from_the_annotation():
    clock = FakeClock()
    _, seconds = drained_for({}, clock, clock.wall() - 40.0)
    assert seconds == 40


def test_a_drain_that_began_in_the_future_begins_now():
    clock = FakeClock()
    known, seconds = drained_for({}, clock, clock.wall() + 3600.0)
    assert seconds == 0
    clock.advance(2.0)
    assert drained_for(known, clock, clock.wall() + 3598.0)[1] == 2


def test_a_drain_that_begins_again_and_another_pod_count_from_their_own_beginning():
    clock = FakeClock()
    known, _ = drained_for({}, clock, clock.wall() - 40.0)
    again, seconds = drained_for(known, clock, clock.wall() - 1.0)
    assert seconds == 1
    assert drained_for(again, clock, clock.wall() - 7.0, uid="other")[1] == 7
    assert drain_times.followed(again, (Replica(name="a", uid="u", phase="ready"),), wall=0.0, steady=0.0) == {}
