"""The index of prefixes: what pods say that they hold, what is on its way, and nothing of a pod that is gone."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvasir_api.prefix_digest import MOST_ENTRIES, WHOLE, PrefixSet
from kvasir_api.state import PrefixDigest
from kvasir_gateway.prefix import ENDED_KEPT_S, MOST_RENTS, EndpointPrefixes


def hashes(*numbers):
    return tuple(number.to_bytes(8) for number in numbers)


def digest(members):
    held = PrefixSet(members)
    return PrefixDigest(
        sequence=len(held.hashes),
        entries=len(held.hashes),
        checksum=held.checksum,
        after=WHOLE,
        added=b"".join(held.hashes),
    )


def read(index, *, began_s, **pods):
    """One reading: instance and members of each pod that answers, None of one that refuses the connection."""
    followed = index.followed(pods)
    for name, told in pods.items():
        if told is None:
            followed[name].forget()
        else:
            assert followed[name].take(told[0], digest(told[1]))
    index.readings_taken({name: told[0] for name, told in pods.items() if told is not None}, began_s=began_s)


@pytest.fixture
def index():
    made = EndpointPrefixes()
    read(made, began_s=1.0, a=("one", hashes(1, 2, 3)), b=("two", ()))
    return made


@pytest.mark.parametrize(
    ("text", "want"),
    [((1, 2, 3), 3), ((1, 2, 3, 4), 3), ((1, 2), 2), ((9, 2, 3), 0), ((1, 9, 3), 1), ((), 0)],
)
def test_the_leading_pieces_that_a_pod_holds_are_counted(index, text, want):
    assert index.matched("a", hashes(*text)) == want
    assert index.matched("b", hashes(*text)) == index.matched("unknown", hashes(*text)) == 0


def test_what_was_forwarded_counts_until_a_reading_that_began_after_its_end(index):
    index.forward("r", "b", hashes(5, 6))
    assert index.matched("b", hashes(5, 6, 7)) == 2
    read(index, began_s=2.0, a=("one", ()), b=("two", ()))
    assert index.matched("b", hashes(5, 6)) == 2
    index.ended("r", "b", now_s=2.5)
    read(index, began_s=2.4, a=("one", ()), b=("two", ()))
    assert index.matched("b", hashes(5, 6)) == 2
    read(index, began_s=3.0, a=("one", ()), b=("two", hashes(5)))
    assert index.matched("b", hashes(5, 6)) == 1


def test_a_pod_that_refuses_has_no_credit_until_it_answers_again(index):
    index.forward("r", "a", hashes(1, 2, 3, 4))
    read(index, began_s=2.0, a=None, b=("two", ()))
    assert index.matched("a", hashes(1, 2, 3)) == 0
    read(index, began_s=3.0, a=("one", hashes(1, 2)), b=("two", ()))
    assert index.matched("a", hashes(1, 2, 3, 4, 5)) == 4


def test_a_pod_that_is_late_keeps_its_credit(index):
    index.followed(["a", "b"])
    index.readings_taken({"b": "two"}, began_s=2.0)
    assert index.matched("a", hashes(1, 2, 3)) == 3


def test_another_process_at_the_address_holds_nothing_of_what_the_first_one_got(index):
    index.forward("r", "a", hashes(1, 2, 3, 4))
    assert index.matched("a", hashes(1, 2, 3, 4)) == 4
    read(index, began_s=2.0, a=("other", ()), b=("two", ()))
    assert index.matched("a", hashes(1, 2, 3, 4)) == 0


def test_endpoints_that_are_gone_are_forgotten(index):
    index.followed(["b"])
    read(index, began_s=2.0, a=("one", ()), b=("two", ()))
    assert index.matched("a", hashes(1)) == 0


def test_memory_is_bounded(index):
    for number in range(40):
        index.forward(str(number), "a", hashes(*range(2000 * number, 2000 * number + 2000)))
    assert index.matched("a", hashes(*range(2000))) == 2000
    assert len(index._pods["a"].expected) <= MOST_ENTRIES
    for number in range(MOST_RENTS + 10):
        index.set_rent(number.to_bytes(8), 1.0)
    assert index.rent_s((0).to_bytes(8)) == 0.0
    assert index.rent_s((MOST_RENTS).to_bytes(8)) == 1.0


def test_memory_is_bounded_where_requests_have_the_same_prefix(index):
    for number in range(100):
        index.forward(str(number), "a", hashes(*range(2000)))
    assert kept(index, "a") <= MOST_ENTRIES
    read(index, began_s=2.0, a=("other", ()), b=("two", ()))
    assert kept(index, "a") == 0
    index.forward("again", "a", hashes(*range(2000)))
    assert index.matched("a", hashes(*range(2000))) == 2000


def test_nothing_is_kept_for_a_pod_whose_set_is_not_known(index):
    read(index, began_s=2.0, a=None, b=("two", ()))
    index.followed(["a", "b", "new"])
    for address in ("a", "new"):
        index.forward(f"to {address}", address, hashes(1, 2))
        assert kept(index, address) == 0


def test_what_has_ended_is_forgotten_by_age_where_no_reading_comes(index):
    for number in range(10):
        index.forward(str(number), "a", hashes(number + 10))
        index.ended(str(number), "a", now_s=2.0 + number)
    index.forward("runs", "a", hashes(99))
    index.readings_taken({}, began_s=2.0 + ENDED_KEPT_S)
    assert kept(index, "a") == 11
    index.readings_taken({}, began_s=2.0 + ENDED_KEPT_S + 4.5)
    assert kept(index, "a") == 6
    index.readings_taken({}, began_s=20.0 + ENDED_KEPT_S)
    assert kept(index, "a") == 1


def kept(index, address):
    return sum(len(route_hashes) for route_hashes, _ in index._pods[address].forwarded.values())


def test_a_prefix_that_was_paid_for_owes_nothing(index):
    index.set_rent(b"p", 2.0)
    index.set_rent(b"p", 0.0)
    assert index.rent_s(b"p") == 0.0


class ForwardedRequests(RuleBasedStateMachine):
    """Requests come and end and pods are read and restart, in any order, against plain sets."""

    def __init__(self):
        super().__init__()
        self.index, self.now, self.number = EndpointPrefixes(), 0.0, 0
        self.held: set[bytes] = set()
        self.open: dict[str, set[bytes]] = {}
        self.over: dict[str, tuple[set[bytes], float]] = {}
        self.instance = 0
        self.answered = self.was_read = False
        read(self.index, began_s=0.0, pod=None)

    @rule(text=st.lists(st.integers(0, 12), min_size=1, max_size=6, unique=True))
    def forward(self, text):
        self.number += 1
        self.index.forward(str(self.number), "pod", hashes(*text))
        if self.answered:
            self.open[str(self.number)] = set(hashes(*text))

    @rule(data=st.data())
    def end(self, data):
        if self.open:
            self.now += 1
            name = data.draw(st.sampled_from(sorted(self.open)))
            self.over[name] = (self.open.pop(name), self.now)
            self.index.ended(name, "pod", now_s=self.now)

    @rule(members=st.sets(st.integers(0, 12)), restarts=st.booleans())
    def read(self, members, restarts):
        self.now += 1
        if restarts and self.was_read:
            self.instance += 1
            self.open.clear()
            self.over.clear()
        self.held, self.answered, self.was_read = set(hashes(*members)), True, True
        self.over = {name: told for name, told in self.over.items() if told[1] >= self.now}
        read(self.index, began_s=self.now, pod=(f"i{self.instance}", hashes(*members)))

    @rule()
    def silent(self):
        self.answered = False
        read(self.index, began_s=self.now, pod=None)

    @invariant()
    def holds_what_was_read_or_forwarded(self):
        there = self.held.union(*self.open.values(), *(text for text, _ in self.over.values()))
        for number in range(13):
            want = int(self.answered and hashes(number)[0] in there)
            assert self.index.matched("pod", hashes(number)) == want


TestForwardedRequests = ForwardedRequests.TestCase
TestForwardedRequests.settings = settings(max_examples=25, stateful_step_count=20)
