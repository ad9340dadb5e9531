"""What gateways counted between two readings, and how it becomes part of a tick."""

import pytest

from kvasir_api.state import ServiceDemand
from kvasir_operator.scaling.gateway_counters import QueueCounts, believed, counted, readings
from kvasir_operator.scaling.load_counts import LoadCounts


def says(gateway="gw", **fields):
    return ServiceDemand(namespace="default", name="s", gateway=gateway, **fields)


A = says("a", shed=1)


def run(*ticks, silent=(), every=2.0):
    """The counts of the last tick, and what could not be true in it."""
    known = {}
    for number, demands in enumerate(ticks):
        now = every * number
        heard, wrong = believed(known, demands, now=now)
        after = readings(known, demands, silent=silent if number else (), now=now)
        found, known = counted(known, after, heard, span_s=every), after
    return found, wrong


@pytest.mark.parametrize(
    ("ticks", "want"),
    [
        pytest.param([[says(shed=90)]], QueueCounts(), id="at first sight nothing"),
        pytest.param([[says(shed=1)], [says(shed=8, expired=2, abandoned=3, held_retried=1)]], (7, 2, 3, 1), id="more"),
        pytest.param([[says(shed=90)], [says(shed=4)]], (4, 0, 0, 0), id="a picker that restarted"),
        pytest.param([[says(shed=90, expired=1)], [says(shed=95)]], (95, 0, 0, 0), id="restarted and busy since"),
        pytest.param([[A, says("b", shed=9)], [says("b", shed=9), says("a", shed=3)]], (2, 0, 0, 0), id="two"),
        pytest.param([[A], [says("b", shed=500)]], QueueCounts(), id="another one"),
        pytest.param([[A], [], [says("a", shed=500)]], QueueCounts(), id="one that was away"),
        pytest.param([[says("", shed=5)], [says("", shed=9)]], QueueCounts(), id="without a name"),
        pytest.param([[says(held=3)], [says(held=5)]], QueueCounts(), id="of a release without counters"),
    ],
)
def test_counters_become_differences_by_gateway(ticks, want):
    assert run(*ticks) == (want, ())


def test_what_a_silent_gateway_counted_enters_at_its_mean_rate():
    first, old, after = says(shed=0), says(shed=0), says(shed=100)
    known = readings({}, [first], silent=(), now=0.0)
    for now in (2.0, 4.0, 6.0, 8.0):
        assert counted(known, readings(known, [old], silent=("gw",), now=now), [old], span_s=2.0) == QueueCounts()
        known = readings(known, [old], silent=("gw",), now=now)
    assert counted(known, readings(known, [after], silent=(), now=10.0), [after], span_s=2.0).shed == 20


def test_a_leap_is_named_and_counts_on_from_where_it_is():
    before, leapt = [says(shed=1)], [says(shed=10**6)]
    assert run(before, leapt) == (QueueCounts(), (("gw", "999999 more shed requests within 3 s"),))
    assert run(before, leapt, [says(shed=10**6 + 5)]) == ((5, 0, 0, 0), ())
    assert run(before, [says(shed=0, expired=10**6)])[1] == (("gw", "1000000 more expired requests within 3 s"),)


def test_what_cannot_be_is_no_reading():
    assert run([says(shed=1)], [says(shed=-1)]) == (QueueCounts(), (("gw", "shed is -1"),))
    assert run([says(shed=1)], [says(shed=-1)], [says(shed=7)]) == (QueueCounts(), ())


@pytest.mark.parametrize(
    ("was_counted", "came", "refused"),
    [
        pytest.param(True, 10 + 7 - 4, 7 + 2 - 4, id="held since it came"),
        pytest.param(False, 10 + 7, 7, id="held for a start"),
    ],
)
def test_an_end_without_a_replica_is_no_other_request(was_counted, came, refused):
    """Those that expired came before; those that were sent before too, and were refused then."""
    queue = QueueCounts(shed=7, expired=2, abandoned=3, held_retried=4)
    found = queue.counted(LoadCounts(arrivals=10), was_counted=was_counted)
    assert (found.came, found.refused) == (came, refused)
