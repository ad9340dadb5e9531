"""What follows from what the picker counts and what Envoy has."""

from kvasir_gateway.active_requests import LOST_AFTER, ActiveRequests, ServiceActivity


def seen(active, counted, settled=0):
    return {"s": ServiceActivity(active=active, counted=counted, settled=settled)}


def test_streams_of_an_earlier_picker_count_until_they_end():
    found = ActiveRequests()
    assert found.compare(seen(3, 0)) == {}
    assert found.inherited == {"s": 3}
    found.compare(seen(4, 1))
    assert found.inherited == {"s": 3}
    found.compare(seen(2, 1))
    assert found.inherited == {"s": 1}
    found.compare(seen(1, 1))
    assert found.inherited == {}


def test_an_end_between_the_two_counts_is_no_stream_of_an_earlier_picker():
    found = ActiveRequests()
    found.compare(seen(2, 2))
    found.compare(seen(2, 1))
    assert found.inherited == {"s": 0}
    found.compare(seen(1, 1))
    assert found.inherited == {}


def test_ends_that_are_lost_for_long_are_over():
    found = ActiveRequests()
    counts = [found.compare(seen(1, 5, settled=3 + turn % 2)) for turn in range(LOST_AFTER)]
    assert counts == [{}] * (LOST_AFTER - 1) + [{"s": 2}]
    assert found.compare(seen(1, 5, settled=3)) == {}


def test_what_was_missing_and_came_is_not_lost():
    found = ActiveRequests()
    for _ in range(LOST_AFTER - 1):
        found.compare(seen(1, 3, settled=2))
    assert found.compare(seen(2, 3, settled=2)) == {}
    assert found.compare(seen(1, 3, settled=2)) == {}


def test_a_service_that_is_gone_is_forgotten():
    found = ActiveRequests()
    found.compare(seen(3, 0))
    found.compare({})
    assert found.inherited == {}
