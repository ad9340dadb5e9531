"""When a prefix is fetched from another replica, and that whatever that replica does a request is answered rightly."""

import pytest

from fakes.host import FakeHost
from fakes.runner import FakeRunner
from fakes.serving import request, serving
from kvasir_api.cache_groups import FULL, LayerAttention, sliding
from kvasir_api.hashes import block_root, extend_block_hashes, owner_of_salt
from kvasir_api.kv_transfer import LEAST_PREFILL_S, MOST_PREFILL_S
from kvasir_api.state import RuntimeState
from kvasir_runtime.core.host_tier import key_of
from kvasir_runtime.core.peer_fetches import (
    MOST_FETCHES,
    MOST_S,
    PROBE_EVERY,
    REST_S,
    PeerFetches,
)
from kvasir_runtime.core.plan import FetchResult, PeerBlock, PeerPrefill

PEER = "10.0.0.2:8002"
PROMPT = tuple(range(1, 42))
"""Ten blocks of 4 tokens, and one token that is computed in any case."""
ASKED = request("a", PROMPT, kv_peer=PEER)


def keys_of(prompt=PROMPT, salt=b"", count=10):
    hashes = []
    extend_block_hashes(hashes, prompt, root=block_root(salt=salt), block_size=4)
    return [key_of(one) for one in hashes[:count]]


def held_by_peer(count=10, salt=b""):
    keys = keys_of(salt=salt, count=count)
    return {key: PROMPT[4 * column : 4 * column + 4] for column, key in enumerate(keys)}


def served(**peer):
    host = FakeHost(num_slots=100, **peer)
    return serving(runner=FakeRunner(host=host), host_blocks=100, fetches_blocks=True, block_bytes=1000)


def answered(serving, *requests):
    serving.submit(*requests)
    serving.finish()
    return [serving.answers[one.request_id] for one in requests]


def alone():
    plain = serving()
    return answered(plain, request("a", PROMPT))[0].tokens


def fetches(serving):
    return [fetch for plan in serving.plans for fetch in plan.fetches]


def test_a_request_waits_for_the_prefix_that_its_peer_holds():
    engine = served(peer=held_by_peer(), peer_delay=3)
    (answer,) = answered(engine, ASKED)
    (fetch,) = fetches(engine)
    assert [(block.column, block.key) for block in fetch.blocks] == list(enumerate(keys_of()))
    assert (fetch.peer, fetch.within_s, len(fetch.tokens)) == (PEER, MOST_S, 4 * 40)
    assert (answer.cached_tokens, answer.tokens) == (40, alone())
    host = engine.scheduler.report(RuntimeState()).kv_host
    assert (host.fetched_tokens, host.failed_fetches) == (40, 0)
    assert host.fetch_bytes_per_s == pytest.approx(1000 * 10 / 0.001)
    assert engine.scheduler.report(RuntimeState()).kv.pinned_tokens == 0


@pytest.mark.parametrize(
    ("holds", "gives_up", "cached"),
    [(0, -1, 0), (6, -1, 24), (10, 6, 24), (10, 0, 0)],
    ids=["nothing", "a part", "ends early", "fails at once"],
)
def test_what_the_peer_does_not_give_is_computed(holds, gives_up, cached):
    engine = served(peer=held_by_peer(holds), gives_up=gives_up)
    (answer,) = answered(engine, ASKED)
    assert (answer.cached_tokens, answer.tokens) == (cached, alone())


def test_a_block_that_came_and_is_damaged_before_it_is_loaded_is_computed():
    engine = served(peer=held_by_peer())
    engine.runner.host.damaged.add(keys_of()[7])
    (answer,) = answered(engine, ASKED)
    assert (answer.cached_tokens, answer.tokens) == (28, alone())


@pytest.mark.parametrize("limits", [{"fetches_blocks": False}, {}], ids=["not enabled", "no peer"])
def test_nothing_is_fetched_without_the_option_or_a_peer(limits):
    host = FakeHost(num_slots=100, peer=held_by_peer())
    engine = serving(runner=FakeRunner(host=host), host_blocks=100, **{"fetches_blocks": True, **limits})
    made = ASKED if limits else request("a", PROMPT)
    answered(engine, made)
    assert fetches(engine) == []


def test_no_more_is_asked_for_than_the_peer_is_known_to_hold():
    engine = served(peer=held_by_peer())
    answered(engine, request("a", PROMPT, kv_peer=PEER, kv_peer_tokens=18))
    assert [len(fetch.blocks) for fetch in fetches(engine)] == [5]


def test_only_what_is_not_here_is_asked_for():
    engine = served(peer=held_by_peer())
    answered(engine, request("first", PROMPT[:17]))
    answered(engine, ASKED)
    (fetch,) = fetches(engine)
    assert [block.column for block in fetch.blocks] == [4, 5, 6, 7, 8, 9]
    assert engine.answers["a"].cached_tokens == 40


def test_two_requests_with_one_prefix_fetch_it_once():
    engine = served(peer=held_by_peer(), peer_delay=3)
    both = answered(engine, ASKED, request("b", (*PROMPT[:40], 7, 8, 9), kv_peer=PEER))
    assert [answer.cached_tokens for answer in both] == [40, 40]
    assert len(fetches(engine)) == 1


def test_blocks_of_a_tenant_have_other_keys():
    engine = served(peer=held_by_peer())
    (answer,) = answered(engine, request("a", PROMPT, kv_peer=PEER, salt=b"tenant"))
    assert answer.cached_tokens == 0
    (fetch,) = fetches(engine)
    assert fetch.salt == b"tenant"
    assert not {block.key for block in fetch.blocks} & set(held_by_peer())


@pytest.mark.parametrize("owner", [b"", owner_of_salt(b"tenant")], ids=["everything", "a tenant"])
def test_what_comes_after_it_was_forgotten_is_neither_found_nor_kept(owner):
    engine = served(peer=held_by_peer(salt=b"tenant"), peer_delay=3)
    engine.submit(request("a", PROMPT, kv_peer=PEER, salt=b"tenant"))
    engine.step()
    engine.scheduler.forget(owner)
    engine.runner.forget_host()
    engine.scheduler.abort("a", engine.now)
    for _ in range(4):  # it comes, and is there before the fetch is reported
        engine.step()
    engine.finish()
    assert not set(keys_of(salt=b"tenant")) & set(engine.runner.host.kept)
    (answer,) = answered(engine, request("b", PROMPT, salt=b"tenant"))
    assert answer.cached_tokens == 0


@pytest.mark.parametrize("guess", [0, 36, 38, 44])
def test_with_windows_a_fetch_is_of_use_wherever_the_part_of_the_peer_ends(guess):
    """The peer has the first nine blocks, and of the group with a window those that the end of its prompt needs."""
    attentions = (FULL, sliding(6))
    held = held_by_peer(9)
    held |= {key[:-1] + b"\1": content for key, content in list(held.items())[7:]}
    host = FakeHost(num_slots=100, peer=held)
    runner = FakeRunner(host=host, attentions=attentions)
    engine = serving(runner=runner, host_blocks=100, fetches_blocks=True, attentions=attentions)
    (answer,) = answered(engine, request("a", PROMPT, kv_peer=PEER, kv_peer_tokens=guess))
    assert (len(fetches(engine)), answer.cached_tokens, answer.tokens) == (1, 36, alone())


def test_a_model_with_states_fetches_nothing():
    """It could go on from a state alone, and which ends have one is not known."""
    attentions = (FULL, LayerAttention("state"))
    runner = FakeRunner(host=FakeHost(num_slots=100, peer=held_by_peer()), attentions=attentions)
    engine = serving(runner=runner, host_blocks=100, fetches_blocks=True, attentions=attentions)
    (answer,) = answered(engine, ASKED)
    assert (fetches(engine), answer.cached_tokens) == ([], 0)


def test_a_prefix_that_a_peer_did_not_have_rests_and_others_do_not():
    engine = served(peer={key: held_by_peer()[key] for key in keys_of()[4:]})
    for name in ("a", "b"):
        engine.scheduler.forget()
        assert answered(engine, request(name, PROMPT, kv_peer=PEER))[0].cached_tokens == 0
    assert len(fetches(engine)) == 1
    answered(engine, request("c", PROMPT[1:], kv_peer=PEER))
    assert len(fetches(engine)) == 2
    engine.scheduler.forget()
    engine.now += REST_S
    answered(engine, request("d", PROMPT, kv_peer=PEER))
    assert len(fetches(engine)) == 3


def test_requests_that_wait_for_blocks_of_peers_keep_no_other_waiting():
    """However many of them there are: as many fetches as may be under way, and more requests for one of them."""
    engine = served(peer_delay=1000)
    for number in range(2 * MOST_FETCHES):
        prompt = (100 + min(number, MOST_FETCHES - 1), *PROMPT)
        engine.submit(request(f"waits {number}", prompt, kv_peer=PEER))
    engine.submit(request("b", (99, 7, 8)))
    for _ in range(20):
        engine.step()
    assert len(fetches(engine)) == MOST_FETCHES
    assert engine.answers["b"].reason == "length"
    assert engine.answers["waits 0"].tokens == []


def test_a_prefetch_brings_what_a_peer_holds_and_computes_nothing():
    engine = served(peer=held_by_peer(6), peer_delay=3)
    (ended,) = answered(engine, request("p", PROMPT, kv_peer=PEER, prefetch=True))
    assert (ended.reason, ended.tokens, ended.cached_tokens) == ("length", [], 24)
    assert [chunk for plan in engine.plans for chunk in plan.chunks] == []
    (fetch,) = fetches(engine)
    assert fetch.within_s == MOST_S
    host = engine.scheduler.report(RuntimeState()).kv_host
    assert (host.fetched_tokens, host.prefetched_tokens) == (24, 24)
    (answer,) = answered(engine, request("b", PROMPT))
    assert (answer.cached_tokens, answer.tokens) == (24, alone())
    totals = engine.scheduler.report(RuntimeState()).totals
    assert (totals.arrivals, totals.completions) == (1, 1), "a prefetch is no request of a client"


@pytest.mark.parametrize("why", ["it is there", "no peer", "the peer failed", "it is on its way"])
def test_a_prefetch_of_which_nothing_comes_ends_at_once(why):
    engine = served(peer=held_by_peer(), peer_delay=9, gives_up=0 if why == "the peer failed" else -1)
    if why == "it is there":
        answered(engine, request("first", PROMPT))
    elif why == "the peer failed":
        answered(engine, ASKED)
    elif why == "it is on its way":
        engine.submit(ASKED)
        engine.step()
    before = len(fetches(engine))
    engine.submit(request("p", PROMPT, kv_peer="" if why == "no peer" else PEER, prefetch=True))
    assert (engine.answers["p"].reason, engine.answers["p"].cached_tokens) == ("length", 0)
    engine.finish()
    assert len(fetches(engine)) == before


def test_a_prefetch_of_a_tenant_is_found_by_that_tenant_alone():
    engine = served(peer=held_by_peer(salt=b"tenant"))
    answered(engine, request("p", PROMPT, kv_peer=PEER, salt=b"tenant", prefetch=True))
    mine, other = answered(engine, request("a", PROMPT, salt=b"tenant"), request("b", PROMPT, salt=b"other"))
    assert (mine.cached_tokens, other.cached_tokens) == (40, 0)


def test_an_aborted_request_leaves_a_fetch_that_ends():
    engine = served(peer=held_by_peer(), peer_delay=5)
    engine.submit(ASKED)
    engine.step()
    engine.scheduler.abort("a", engine.now)
    engine.finish()
    assert engine.answers["a"].tokens == []
    (answer,) = answered(engine, request("b", PROMPT))
    assert answer.cached_tokens == 40


def blocks(count, first=0):
    return tuple(PeerBlock(number, bytes([first + number]) * 33) for number in range(count))


def begun(peers, made, count=4, first=0, compute_s=0.0):
    peers.add(made, b"", blocks(count, first), compute_s)
    (order,) = peers.begin()
    return order


def test_a_peer_that_failed_rests_and_others_do_not():
    peers = PeerFetches(4)
    peers.settle(FetchResult(number=begun(peers, ASKED).number, failed=True))
    assert not peers.may_ask(PEER, 100.0)
    assert peers.may_ask("10.0.0.3:8002", 100.0)
    assert not peers.may_ask(PEER, 100.0 + REST_S - 0.1)
    assert peers.may_ask(PEER, 100.0 + REST_S)


def test_only_so_many_fetches_are_under_way():
    peers = PeerFetches(4)
    orders = [begun(peers, ASKED, first=10 * number) for number in range(MOST_FETCHES)]
    assert not peers.may_ask(PEER, 0.0)
    peers.settle(FetchResult(number=orders[1].number))
    assert peers.may_ask(PEER, 0.0)


@pytest.mark.parametrize(
    ("token_s", "load_s", "want"),
    [
        (0.0, 0.0, True),  # not measured
        (0.1, 0.0, True),  # 10 blocks: 1 s to fetch, 4 s to compute
        (0.02, 0.0, False),  # 0.8 s to compute
        (0.03, 0.0, True),
        (0.03, 0.03, False),  # and 0.3 s to copy from the host
    ],
)
def test_a_fetch_has_to_be_quicker_than_computing(token_s, load_s, want):
    peers = PeerFetches(4)
    assert peers.worth_fetching(10, 10, token_s=0.001, load_s=1.0)
    done = begun(peers, ASKED)
    peers.settle(FetchResult(number=done.number, keys=tuple(block.key for block in done.blocks), seconds=0.4))
    assert peers.worth_fetching(10, 10, token_s=token_s, load_s=load_s) == want


def test_blocks_that_other_fetches_bring_come_first():
    peers = PeerFetches(4)
    done = begun(peers, ASKED)
    peers.settle(FetchResult(number=done.number, keys=tuple(block.key for block in done.blocks), seconds=0.4))
    begun(peers, ASKED, count=20, first=30)
    assert not peers.worth_fetching(10, 10, token_s=0.05, load_s=0.0)  # 3 s to fetch, 2 s to compute
    assert peers.worth_fetching(10, 10, token_s=0.08, load_s=0.0)


def test_a_slow_peer_is_measured_again_now_and_then():
    peers = PeerFetches(4)
    done = begun(peers, ASKED)
    peers.settle(FetchResult(number=done.number, keys=tuple(block.key for block in done.blocks), seconds=400.0))
    judged = [peers.worth_fetching(10, 10, token_s=0.1, load_s=0.0) for _ in range(2 * PROBE_EVERY)]
    assert judged.count(True) == 2


@pytest.mark.parametrize(("compute_s", "want"), [(0.0, 10.0), (0.02, 0.1), (3.0, 3.0), (1000.0, 10.0)])
def test_a_fetch_may_take_as_long_as_computing_within_bounds(compute_s, want):
    assert begun(PeerFetches(4), ASKED, compute_s=compute_s).within_s == want


def test_a_prompt_that_the_peer_is_to_compute_is_asked_for_whole_with_whose_it_is():
    engine = served(peer=held_by_peer())
    asked = request(
        "a", PROMPT, kv_peer=PEER, kv_peer_computes=True, kv_peer_tokens=4, tenant="acme", weight=2.0, priority=3
    )
    (answer,) = answered(engine, asked)
    (fetch,) = fetches(engine)
    assert fetch.prefill == PeerPrefill(tenant="acme", weight=2.0, priority=3)
    assert len(fetch.blocks) == 10
    assert (answer.cached_tokens, answer.tokens) == (40, alone())
    host = engine.scheduler.report(RuntimeState()).kv_host
    assert (host.handed_over_prompts, host.peer_prompts) == (1, 0)


@pytest.mark.parametrize(
    ("compute_s", "within_s"), [(0.0, MOST_S), (0.1, LEAST_PREFILL_S), (3.0, 12.0), (100.0, MOST_PREFILL_S)]
)
def test_what_a_peer_computes_may_take_longer_than_computing_here(compute_s, within_s):
    peers = PeerFetches(4)
    asked = request("a", PROMPT, kv_peer=PEER, kv_peer_computes=True)
    peers.add(asked, b"", (PeerBlock(0, bytes(33)),), compute_s)
    (fetch,) = peers.begin()
    assert fetch.within_s == within_s


def test_a_prompt_of_which_nothing_came_was_not_handed_over():
    engine = served(peer=held_by_peer(0))
    (answer,) = answered(engine, request("a", PROMPT, kv_peer=PEER, kv_peer_computes=True))
    assert (answer.cached_tokens, answer.tokens) == (0, alone())
    assert engine.scheduler.report(RuntimeState()).kv_host.handed_over_prompts == 0


def test_prompts_that_are_computed_for_another_replica_are_counted():
    engine = served()
    answered(engine, request("a", PROMPT, max_tokens=1, for_peer=True))
    assert engine.scheduler.report(RuntimeState()).kv_host.peer_prompts == 1


def handed(name, prompt=PROMPT):
    return request(name, prompt, kv_peer=PEER, kv_peer_computes=True)


def test_a_request_that_is_aborted_ends_what_a_peer_computes_for_it():
    engine = served(peer=held_by_peer(), peer_delay=1000)
    engine.submit(handed("a"))
    engine.step()
    engine.scheduler.abort("a", engine.now)
    for _ in range(3):
        engine.step()
    assert engine.runner.host.cancelled == [fetch.number for fetch in fetches(engine)]
    host = engine.scheduler.report(RuntimeState()).kv_host
    assert (engine.scheduler.has_work, host.failed_fetches) == (False, 0)
    engine.runner.host.peer_delay = 0
    (answer,) = answered(engine, handed("b"))
    assert (answer.cached_tokens, answer.tokens) == (40, alone()), "the peer is not to blame"


def test_what_another_request_waits_for_is_not_ended():
    engine = served(peer=held_by_peer(), peer_delay=6)
    engine.submit(handed("a"), request("b", PROMPT))
    engine.step()
    engine.scheduler.abort("a", engine.now)
    engine.finish()
    assert engine.runner.host.cancelled == []
    assert (engine.answers["b"].cached_tokens, engine.answers["b"].tokens) == (40, alone())


def test_what_no_plan_has_begun_is_never_asked_for():
    engine = served(peer=held_by_peer())
    engine.submit(handed("a"))
    engine.scheduler.abort("a", engine.now)
    engine.finish()
    assert (fetches(engine), engine.runner.host.cancelled, engine.scheduler.has_work) == ([], [], False)


def test_two_replicas_that_have_one_another_compute_a_prompt_do_not_wait_for_one_another():
    """Each is asked for what it has just asked the other one for, and a replica may be named to itself."""
    engine = served(peer_delay=1000)
    engine.submit(request("a", PROMPT, kv_peer=PEER, kv_peer_computes=True))
    engine.step()
    engine.submit(request("b", PROMPT[:40], max_tokens=1, for_peer=True))
    for _ in range(20):
        engine.step()
    assert engine.answers["b"].reason == "length"
    assert set(keys_of()) <= set(engine.runner.host.kept), "it can be given to the other one"
    assert (engine.answers["a"].cached_tokens, engine.answers["a"].tokens) == (40, alone()), "and is of use here"
