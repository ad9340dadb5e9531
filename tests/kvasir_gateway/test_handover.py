"""A prompt is handed over where that costs less than it saves, and stays otherwise."""

import pytest
from msgspec import structs

from kvasir_gateway.choose import Candidate, ChoicePolicy, EndpointLoad, RequestSize
from kvasir_gateway.handover import HandedPrompts, HandoverFacts, handover
from kvasir_gateway.queue_room import QueueRoom

POLICY = ChoicePolicy()
BUSY = EndpointLoad(running=20, prefill_tokens_per_s=1000.0, stall_fraction=0.5, max_sequences=64)
IDLE = EndpointLoad(prefill_tokens_per_s=1000.0, stall_fraction=0.5, max_sequences=64)
LONG = RequestSize(prompt_tokens=2000.0, output_tokens=100.0)
MOVED = HandoverFacts(kv_bytes_per_token=100_000.0, bytes_per_s=1e9)
"""0.2 seconds for LONG."""


def at(address, load=IDLE, **fields):
    return Candidate(address=address, load=load, **fields)


def handed(decode=BUSY, prefill=(), request=LONG, facts=MOVED):
    return handover(at("d", decode), prefill or [at("p")], request, facts, policy=POLICY)


def test_a_long_prompt_leaves_a_replica_that_decodes_much():
    """Staying: 2 s, and 0.5 * 20 * 2 s of the others. Handed over: 2 s, 0.2 s of blocks and 0.03 s besides."""
    found = handed()
    assert (found.address, found.tokens, found.saved_s) == ("p", 2000.0, pytest.approx(22.0 - 2.23))


@pytest.mark.parametrize(
    "changes",
    [
        {"decode": IDLE},
        {"decode": None},
        {"request": RequestSize(prompt_tokens=50.0)},
        {"facts": structs.replace(MOVED, cached_tokens=1950.0)},
        {"facts": structs.replace(MOVED, bytes_per_s=1e7)},
        {"prefill": [at("p", structs.replace(IDLE, waiting=4, waiting_uncached_tokens=20_000))]},
        {"prefill": [at("p", recent=4, recent_tokens=20_000.0)]},
        {"prefill": [at("p", recent=4, recent_tokens=7_000.0)]},
        {"prefill": [at("p", structs.replace(IDLE, age_s=60.0))]},
        {"prefill": [at("p", None)]},
        {
            "prefill": [
                at("p", structs.replace(IDLE, running=64, waiting=9, room=QueueRoom(places=64, most_requests=8)))
            ]
        },
    ],
    ids=[
        "nothing to stall",
        "no reading",
        "short",
        "cached",
        "slow link",
        "queue there",
        "sent there since",
        "later than it is waited for",
        "silent",
        "no reading there",
        "full there",
    ],
)
def test_a_prompt_stays_where_handing_over_saves_nothing(changes):
    found = handed(**changes)
    assert found is None or (found.pays, found.saved_s <= 0 or found.late_s > 0) == (False, True)


def test_a_prompt_that_takes_longer_than_any_fetch_may_leaves_too():
    """What comes within the time of a fetch is kept, and the rest is computed."""
    assert handed(request=RequestSize(prompt_tokens=40_000.0, output_tokens=100.0)).pays


def test_the_replica_that_has_most_of_it_and_the_least_to_do_computes_it():
    holder = at("holder", cached_tokens=1500.0)
    found = handed(prefill=[at("idle"), holder, at("queue", recent=1, recent_tokens=500.0)])
    assert (found.address, found.tokens) == ("holder", 500.0)


def test_no_prompt_is_handed_to_a_queue_that_the_replica_with_the_answer_does_not_wait_for():
    """It waits 8 s for what takes it 2 s. It comes after 6 s of other prompts, 2 s of its own and 0.23 s in which it is
    moved. A replica that is in time goes first, whatever it costs."""
    late, busy = at("late", recent=1, recent_tokens=7000.0), at("busy", structs.replace(BUSY, running=6))
    found = handed(prefill=[late])
    assert (found.saved_s > 0, found.late_s, found.pays) == (True, pytest.approx(1.0), False)
    assert handed(prefill=[at("p", recent=1, recent_tokens=5700.0)]).pays
    found = handed(prefill=[late, busy])
    assert (found.address, found.late_s, found.pays) == ("busy", 0.0, True)


def test_a_replica_that_has_measured_nothing_is_taken_to_be_as_fast_as_others_of_its_kind():
    fast = structs.replace(BUSY, prefill_tokens_per_s=10_000.0)
    found = handed(decode=fast, prefill=[at("p", EndpointLoad(max_sequences=64))])
    assert found.there_s == pytest.approx(0.2)


def test_a_measured_link_replaces_the_assumed_one():
    unmeasured, slow = (structs.replace(MOVED, bytes_per_s=rate) for rate in (0.0, 1e8))
    assert handed(facts=unmeasured).saved_s == pytest.approx(22.0 - 2.23)
    assert handed(facts=slow).saved_s == pytest.approx(22.0 - 4.03)


def test_prompts_count_where_they_were_handed_until_a_reading_shows_them():
    prompts = HandedPrompts()
    prompts.add("p", 100.0, 10.0)
    prompts.add("p", 50.0, 12.0)
    assert prompts.since("p", 9.0) == (2, 150.0)
    assert prompts.since("p", 10.0) == (1, 50.0)
    assert prompts.since("other", 0.0) == (0, 0)
    prompts.keep(["other"])
    assert prompts.since("p", 0.0) == (0, 0)
