"""Requests in flight are counted exactly, whatever order their beginnings and ends arrive in."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kvasir_gateway.inflight import MAX_EARLY_ENDS, MOST_TIMES, InflightRequest, InflightRequests


def request(name, *, service="ns.s", address="a:1", tokens=10, added_s=0.0):
    return InflightRequest(id=name, service=service, address=address, uncached_tokens=tokens, added_s=added_s)


def test_a_request_counts_until_its_end():
    inflight = InflightRequests()
    assert inflight.add(request("x"))
    assert (inflight.at("a:1"), inflight.counts("ns.s").inflight, inflight.total()) == (1, 1, 1)
    assert inflight.remove("x") == request("x")
    assert (inflight.at("a:1"), inflight.counts("ns.s").inflight, inflight.total()) == (0, 0, 0)


def test_an_end_may_come_before_its_beginning():
    inflight = InflightRequests()
    assert inflight.remove("x") is None
    assert not inflight.add(request("x"))
    assert inflight.total() == 0
    assert inflight.add(request("x"))


def test_an_answer_is_where_it_went_on_last():
    inflight = InflightRequests()
    for name, address in {"x": "a:1", "y": "b:1", "z": "c:1"}.items():
        inflight.add(replace(request(name, address=address), answer="" if name == "z" else "cmpl-1"))
    inflight.remove("x")
    assert (inflight.went_on_at("cmpl-1"), inflight.went_on_at("")) == ("b:1", "")
    inflight.remove("y")
    assert inflight.went_on_at("cmpl-1") == ""


def test_early_ends_are_forgotten_oldest_first():
    inflight = InflightRequests()
    for number in range(MAX_EARLY_ENDS + 1):
        inflight.remove(str(number))
    assert inflight.add(request("0"))
    assert not inflight.add(request("1"))


def test_what_was_added_since_a_moment():
    inflight = InflightRequests()
    for second in range(5):
        inflight.add(request(str(second), tokens=second, added_s=float(second)))
    inflight.add(request("elsewhere", address="b:1", added_s=9.0))
    inflight.remove("4")
    assert inflight.since("a:1", 1.0) == (2, 5)
    assert inflight.since("a:1", 9.0) == (0, 0)
    assert inflight.since("nowhere", 0.0) == (0, 0)


def test_what_was_added_before_a_moment_is_removed():
    inflight = InflightRequests()
    old = [request("x", added_s=1.0), request("y", service="ns.t", address="b:1", added_s=2.0)]
    for found in (*old, request("z", added_s=3.0)):
        inflight.add(found)
    assert inflight.remove_before(3.0) == old
    assert (inflight.total(), inflight.counts("ns.s").inflight, inflight.counts("ns.t").inflight) == (1, 1, 0)
    assert inflight.remove("z") is not None


@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.sampled_from(["ns.s", "ns.t"]), st.sampled_from(["a:1", "b:1"])),
        max_size=60,
    ),
    st.randoms(),
)
def test_counts_agree_with_what_is_open(requests, random):
    """Each request's opening and closing come once, in any order among one another."""
    events = [
        (kind, f"{name}{index}", service, address)
        for index, (name, service, address) in enumerate(requests)
        for kind in ("open", "close")
    ]
    random.shuffle(events)
    inflight = InflightRequests()
    opened, closed = set(), set()
    for kind, name, service, address in events:
        if kind == "open":
            inflight.add(request(name, service=service, address=address))
            opened.add((name, service, address))
        else:
            inflight.remove(name)
            closed.add(name)
        live = [one for one in opened if one[0] not in closed]
        assert inflight.total() == len(live)
        for where in ("a:1", "b:1"):
            assert inflight.at(where) == sum(one[2] == where for one in live)
        for service_name in ("ns.s", "ns.t"):
            assert inflight.counts(service_name).inflight == sum(one[1] == service_name for one in live)


def test_when_requests_were_sent_is_known_newest_first():
    requests = InflightRequests()
    for number, added_s in enumerate((1.0, 2.0, 2.0, 3.0)):
        requests.add(InflightRequest(id=str(number), service="s", address="a", uncached_tokens=0.0, added_s=added_s))
    assert requests.times("a", 1.0, 2.5) == [2.0, 2.0]
    assert requests.times("a", 0.0, 9.0) == [3.0, 2.0, 2.0, 1.0]
    assert requests.times("b", 0.0, 9.0) == []


def test_sequences_count_and_thousands_of_them_take_no_time():
    requests = InflightRequests()
    for number in range(50):
        requests.add(replace(request(str(number), added_s=1.0), num_sequences=4096))
    assert (requests.at("a:1"), requests.sequences_at("a:1"), requests.since("a:1", 0.0)[0]) == (50, 204_800, 204_800)
    assert requests.times("a:1", 0.0, 9.0) == [1.0] * MOST_TIMES
