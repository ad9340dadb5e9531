"""Readings, prefixes, history and requests in flight together decide where a request goes."""

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fakes.gateway import service, table
from fakes.routing import ONE, TEXT, TWO, Prompt, Rig
from kvasir_api.state import MeasuredRates, RequestTotals, RuntimeState, TtftForecast
from kvasir_api.state_count import MAX_COUNT
from kvasir_gateway import placements
from kvasir_gateway.placements import RequestPlacement
from kvasir_gateway.router import MOST_ELSEWHERE
from kvasir_gateway.routing_table import StateReading


@pytest.fixture
def rig():
    made = Rig()
    made.read()
    return made


def test_a_prompt_goes_to_the_pod_that_holds_it(rig):
    rig.read(TEXT)
    choice, _ = rig.send()
    assert (choice.addresses[0], choice.uncached_tokens, choice.is_cold) == (ONE, 20.0, False)
    cold, _ = rig.send(Prompt((b"another!",) * 10))
    assert (cold.addresses[0], cold.is_cold) == (TWO, True)


def test_the_next_turn_follows_before_any_reading_knows_of_the_first(rig):
    first, name = rig.send()
    rig.router.ended(name, now_s=rig.now + 0.1)
    again, _ = rig.send(Prompt((*TEXT, b"next one")))
    assert again.addresses[0] == first.addresses[0]
    assert again.uncached_tokens == 84.0


def test_the_next_turn_does_not_wait_for_the_last_one(rig):
    first, name = rig.send()
    rig.now += 1
    rig.read(running=1)
    rig.router.ended(name, now_s=rig.now + 0.1)
    again, _ = rig.send(Prompt((*TEXT, b"next one")))
    costs = {cost.address: cost for cost in again.costs}
    assert costs[first.addresses[0]].stall_s == costs[first.addresses[0]].decode_s == 0.0


def requests_at(rig, address):
    """What the next choice knows of an endpoint's queue."""
    routed = rig.router.choose(rig.service, Prompt(), rig.readings, now_s=rig.now)
    (found,) = [one for one in routed.inputs.candidates if one.address == address]
    return found.load.running + found.load.waiting + found.recent


def test_a_request_that_its_pod_has_not_counted_yet_is_there(rig):
    rig.read(TEXT)
    rig.send()
    rig.now += 0.4
    rig.read(TEXT)  # the pod reads it still
    assert requests_at(rig, ONE) == 1
    rig.now += 0.4
    rig.read(TEXT, running=1)
    assert requests_at(rig, ONE) == 1
    rig.now += 0.4
    rig.read(TEXT)  # it is over, and its client still reads
    assert requests_at(rig, ONE) == 0


def test_sequences_of_one_request_count_as_its_pod_counts_them(rig):
    rig.read(TEXT)
    _, name = rig.send(Prompt(num_sequences=4))
    assert requests_at(rig, ONE) == 4
    rig.now += 0.4
    rig.read(TEXT, running=1)  # three are on their way
    assert requests_at(rig, ONE) >= 4
    rig.now += 5.0
    rig.read(TEXT, running=4)
    assert requests_at(rig, ONE) == 4
    rig.router.ended(name, now_s=rig.now)
    assert requests_at(rig, ONE) == 0


def test_an_end_that_the_pod_knew_first_is_no_second_one(rig):
    rig.read(TEXT)
    names = [rig.send()[1] for _ in range(3)]
    rig.now += 5.0
    rig.read(TEXT, running=2)  # one has ended there
    rig.router.ended(names[0], now_s=rig.now)
    assert requests_at(rig, ONE) == 2
    rig.router.ended(names[1], now_s=rig.now)
    assert requests_at(rig, ONE) == 1


def test_what_another_gateway_sent_is_on_its_way_too(rig):
    rig.read(TEXT)
    rig.router.forwarded_elsewhere("other", RequestPlacement(id="r", address=ONE), now_s=rig.now + 0.1)
    rig.now += 0.4
    rig.read(TEXT)
    assert requests_at(rig, ONE) == 1
    rig.router.ended_elsewhere("other", "r", now_s=rig.now)
    assert requests_at(rig, ONE) == 0


def test_cold_prompts_of_strangers_take_turns(rig):
    firsts = []
    for number in range(6):
        rig.now += 1
        rig.read()
        choice, name = rig.send(Prompt((number.to_bytes(8, "little"),) * 3))
        rig.router.ended(name, now_s=rig.now)
        firsts.append(choice.addresses[0])
    assert sorted(firsts[:2]) == [ONE, TWO]
    assert firsts == firsts[:2] * 3


def test_a_killed_pod_is_credited_nothing_at_the_next_reading(rig):
    rig.read(TEXT)
    assert rig.send()[0].uncached_tokens == 20.0
    rig.now += 0.5
    rig.read(TEXT, refusing=[ONE])
    assert [c.uncached_tokens for c in rig.send()[0].costs] == [Prompt().num_tokens] * 2
    rig.now += 0.5
    rig.read((), instances=("restarted", "b"))
    (held,) = [c for c in rig.send()[0].costs if c.address == ONE]
    assert held.uncached_tokens == Prompt().num_tokens


def test_a_new_router_is_blind_for_one_reading(rig):
    rig.read(TEXT)
    fresh = Rig()
    fresh.read(TEXT)
    assert fresh.send()[0].addresses[0] == ONE


def test_a_hot_prefix_is_copied_and_its_holder_owes_nothing_then(rig):
    rig.read(TEXT)
    reasons = [rig.send()[0].reason for _ in range(200)]
    assert "copy" in reasons
    assert rig.router.inflight.at(TWO) > 60


def test_answers_are_taken_to_be_as_long_as_those_before(rig):
    rig.read(running=4, totals=RequestTotals(completions=10, generation_tokens=5000))
    assert {c.decode_s for c in rig.send()[0].costs} == {2 * 0.001 * 500 * 4}
    assert {c.decode_s for c in rig.send(Prompt(most_output_tokens=50))[0].costs if c.address == TWO} <= {
        2 * 0.001 * 50 * 4,
        2 * 0.001 * 50 * 5,
    }


any_count = st.integers(-MAX_COUNT, MAX_COUNT) | st.sampled_from((0, 1, -(2**60), MAX_COUNT, -MAX_COUNT))
any_number = st.floats(allow_nan=False) | st.sampled_from((0.0, 1e-308, -1e-308, 1e308, -1e308, 1.0))


def lies(document):
    """A part of the state document with any numbers in some of its fields."""
    kinds = {msgspec.inspect.IntType: any_count, msgspec.inspect.FloatType: any_number}
    fields = msgspec.inspect.type_info(document).fields
    numbers = {field.name: kinds[type(field.type)] for field in fields if type(field.type) in kinds}
    return st.fixed_dictionaries({}, optional=numbers).map(lambda given: document(**given))


lying_states = st.builds(
    lambda state, **parts: msgspec.structs.replace(state, phase="ready", instance="b", **parts),
    lies(RuntimeState),
    totals=lies(RequestTotals),
    rates=lies(MeasuredRates),
    ttft=lies(TtftForecast),
)


@given(
    told=st.lists(lying_states, min_size=1, max_size=3),
    kind=st.sampled_from(("", "cuda")),
    most_output_tokens=st.sampled_from((0, 50)),
)
@example(
    told=[RuntimeState(phase="ready", totals=RequestTotals(completions=1, generation_tokens=-(2**60)), running=9)],
    kind="",
    most_output_tokens=0,
)
@example(
    told=[RuntimeState(phase="ready", rates=MeasuredRates(prefill_tokens_per_s=1e-308))], kind="", most_output_tokens=0
)
def test_whatever_one_pod_states_the_other_one_gets_requests(told, kind, most_output_tokens):
    rig = Rig()
    for state in told:
        rig.now += 2.0  # what the honest one was sent before and does not count is over
        rig.read(totals=RequestTotals(completions=10, generation_tokens=1000))
        rig.lie(TWO, msgspec.structs.replace(state, device=kind))
        chosen = [rig.send(Prompt(most_output_tokens=most_output_tokens))[0] for _ in range(4)]
        assert {frozenset(choice.addresses) for choice in chosen} == {frozenset((ONE, TWO))}
        if not kind:
            assert ONE in {choice.addresses[0] for choice in chosen}


def test_other_strategies_look_at_no_prefixes():
    rig = Rig(strategy="least-load")
    rig.read(TEXT)
    assert [rig.send()[0].addresses[0] for _ in range(4)].count(ONE) == 2


def test_what_broke_with_an_envoy_is_over(rig):
    choice, _ = rig.send()
    assert [request.address for request in rig.router.broken(before_s=rig.now + 1, now_s=rig.now)] == [
        choice.addresses[0]
    ]
    assert rig.router.inflight.total() == 0
    assert rig.router.ended("1", now_s=rig.now) is None


@pytest.mark.parametrize("end", ["broken", "lost"])
def test_what_ended_unseen_is_expected_only_until_the_next_reading(rig, end):
    rig.send()
    if end == "lost":
        assert len(rig.router.lost(rig.service.key, 1, now_s=rig.now)) == 1
    else:
        assert len(rig.router.broken(before_s=rig.now + 1, now_s=rig.now)) == 1
    rig.now += 1
    rig.read()
    assert [cost.uncached_tokens for cost in rig.send()[0].costs] == [Prompt().num_tokens] * 2


def test_no_pod_that_may_be_chosen_is_no_choice():
    rig = Rig()
    rig.service = table([service("s")], []).services[0]
    assert rig.router.choose(rig.service, Prompt(), {}, now_s=0.0) is None


def share(sender, receiver, prompt=None):
    """Send a request by one router and let the other one know."""
    sender.number += 1
    sender.now = receiver.now = max(sender.now, receiver.now) + 0.001
    routed = sender.router.choose(sender.service, prompt or Prompt(), sender.readings, now_s=sender.now)
    address = routed.choice.addresses[0]
    placed = sender.router.forward(str(sender.number), sender.service, address, routed, now_s=sender.now)
    receiver.router.forwarded_elsewhere("other", placements.decode(placements.encode(placed)), now_s=receiver.now)
    return routed.choice, placed


def test_what_another_gateway_sent_counts_as_an_own_request():
    mine, other = Rig(), Rig()
    mine.read(running=1)
    other.read(running=1)
    choice, placed = share(other, mine)
    again, _ = mine.send(Prompt((*TEXT, b"next one")))
    assert again.addresses[0] == choice.addresses[0]
    assert again.uncached_tokens == 84.0
    costs = {cost.address: cost for cost in again.costs}
    assert costs[placed.address].wait_s == pytest.approx(placed.uncached_tokens / 1000)
    assert mine.router.inflight.counts(mine.service.key).inflight == 1, "the autoscaler adds up all gateways"


def test_gateways_that_know_of_one_another_choose_as_one():
    """The same requests in the same order, by one gateway or by two in turn."""
    prompts = [Prompt(tuple((number % 7).to_bytes(8) for _ in range(number % 5 + 1))) for number in range(60)]
    alone, pair = Rig(), (Rig(), Rig())
    for rig in (alone, *pair):
        rig.read(running=2)
    chosen = [alone.send(prompt)[0].addresses[0] for prompt in prompts]
    together = [share(pair[n % 2], pair[1 - n % 2], prompt)[0].addresses[0] for n, prompt in enumerate(prompts)]
    assert together == chosen
    assert len(set(chosen)) == 2


@pytest.mark.parametrize("end", ["ended", "left"])
def test_what_another_gateway_sent_is_expected_until_it_ended_and_was_read(end):
    mine, other = Rig(), Rig()
    mine.read()
    other.read()
    _, placed = share(other, mine)
    if end == "ended":
        mine.router.ended_elsewhere("other", placed.id, now_s=mine.now)
    else:
        mine.router.gateway_left("other", now_s=mine.now)
    assert min(c.uncached_tokens for c in mine.send()[0].costs) == 20.0
    mine = Rig()
    mine.read()
    share(other, mine)
    mine.router.gateway_left("other", now_s=mine.now)
    mine.now += 1
    mine.read()
    assert [c.uncached_tokens for c in mine.send()[0].costs] == [Prompt().num_tokens] * 2


def test_gateways_that_choose_at_once_do_not_all_take_the_same_of_equal_pods():
    """Each holds the prompt; no gateway knows yet what the other one chose."""
    firsts = []
    for number in range(2):
        rig = Rig()
        rig.router.number = number
        rig.read(TEXT)
        for _ in range(2):  # make both pods hold it, at different times
            _, name = rig.send()
            rig.router.ended(name, now_s=rig.now)
        rig.lie(TWO, msgspec.structs.replace(rig.readings[ONE].state, instance="b"))
        rig.router.followed([ONE, TWO])[TWO].take("b", rig.readings[ONE].state.prefixes)
        rig.now += 1
        rig.readings = {a: StateReading(state=r.state, at_s=rig.now) for a, r in rig.readings.items()}
        firsts.append(rig.send()[0].addresses[0])
    assert sorted(firsts) == [ONE, TWO]


@pytest.mark.parametrize(("answer", "known"), [("cmpl-1", True), ("x" * 129, False)])
def test_where_an_answer_went_on_is_known_to_all_gateways(answer, known):
    """One that is longer than a name may be is no reason to be followed no more."""
    mine, other = Rig(), Rig()
    placed = other.router.forward("r", other.service, TWO, None, now_s=other.now, answer=answer)
    mine.router.forwarded_elsewhere("other", placements.decode(placements.encode(placed)), now_s=mine.now)
    for rig in (mine, other):
        assert rig.router.went_on_at(answer) == (TWO if known else "")
    mine.router.ended_elsewhere("other", "r", now_s=mine.now)
    assert mine.router.went_on_at(answer) == ""


def test_a_gateway_that_never_ends_its_requests_is_bounded():
    rig = Rig()
    rig.read()
    for number in range(MOST_ELSEWHERE + 5):
        rig.router.forwarded_elsewhere("other", RequestPlacement(id=str(number), address=ONE), now_s=rig.now + 1)
    rig.now += 2
    (cost,) = [c for c in rig.send(Prompt((b"another!",) * 10))[0].costs if c.address == ONE]
    assert cost.decode_s == pytest.approx(2 * 0.001 * 256 * MOST_ELSEWHERE)
