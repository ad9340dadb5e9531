"""Requests in flight are counted exactly, whatever order their beginnings and ends arrive in."""

from hypothesis import given
from hypothesis import strategies as st

from kvasir_gateway.tickets import MAX_EARLY_ENDS, Ticket, Tickets


def ticket(name, *, service="ns.s", address="a:1", tokens=10, opened_s=0.0):
    return Ticket(id=name, service=service, address=address, prompt_tokens=tokens, opened_s=opened_s)


def test_a_ticket_counts_from_its_opening_to_its_closing():
    tickets = Tickets()
    assert tickets.open(ticket("x"))
    assert (tickets.inflight("a:1"), tickets.count("ns.s").inflight, tickets.total()) == (1, 1, 1)
    assert tickets.close("x") == ticket("x")
    assert (tickets.inflight("a:1"), tickets.count("ns.s").inflight, tickets.total()) == (0, 0, 0)


def test_an_end_may_come_before_its_beginning():
    tickets = Tickets()
    assert tickets.close("x") is None
    assert not tickets.open(ticket("x"))
    assert tickets.total() == 0
    assert tickets.open(ticket("x"))


def test_early_ends_are_forgotten_oldest_first():
    tickets = Tickets()
    for number in range(MAX_EARLY_ENDS + 1):
        tickets.close(str(number))
    assert tickets.open(ticket("0"))
    assert not tickets.open(ticket("1"))


def test_what_was_opened_since_a_moment():
    tickets = Tickets()
    for second in range(5):
        tickets.open(ticket(str(second), tokens=second, opened_s=float(second)))
    tickets.open(ticket("elsewhere", address="b:1", opened_s=9.0))
    tickets.close("4")
    assert tickets.since("a:1", 1.0) == (2, 5)
    assert tickets.since("a:1", 9.0) == (0, 0)
    assert tickets.since("nowhere", 0.0) == (0, 0)


def test_what_was_opened_before_a_moment_is_closed():
    tickets = Tickets()
    old = [ticket("x", opened_s=1.0), ticket("y", service="ns.t", address="b:1", opened_s=2.0)]
    for found in (*old, ticket("z", opened_s=3.0)):
        tickets.open(found)
    assert tickets.close_before(3.0) == old
    assert (tickets.total(), tickets.count("ns.s").inflight, tickets.count("ns.t").inflight) == (1, 1, 0)
    assert tickets.close("z") is not None


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
    tickets = Tickets()
    opened, closed = set(), set()
    for kind, name, service, address in events:
        if kind == "open":
            tickets.open(ticket(name, service=service, address=address))
            opened.add((name, service, address))
        else:
            tickets.close(name)
            closed.add(name)
        live = [one for one in opened if one[0] not in closed]
        assert tickets.total() == len(live)
        for where in ("a:1", "b:1"):
            assert tickets.inflight(where) == sum(one[2] == where for one in live)
        for service_name in ("ns.s", "ns.t"):
            assert tickets.count(service_name).inflight == sum(one[1] == service_name for one in live)
