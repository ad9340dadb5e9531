"""What a pod was sent in the last half minute, from the counters that it reports."""

import pytest

from kvasir_api.state import MeasuredRates, RequestTotals, RuntimeState
from kvasir_gateway.choose import EndpointLoad
from kvasir_gateway.load_history import LoadHistory, PodHistory, SentRequests, lag_s


def reading(arrivals, tokens, *, instance="one"):
    return RuntimeState(
        instance=instance,
        totals=RequestTotals(arrivals=arrivals, uncached_prompt_tokens=tokens),
        rates=MeasuredRates(prefill_tokens_per_s=1000.0),
    )


def after(seconds, *, history=None, per_s=2, tokens=300, start=0):
    history = history or PodHistory()
    for second in range(start, start + seconds + 1):
        history.observe(reading(per_s * second, tokens * second), float(second))
    return history


def test_a_steady_load_is_known_after_a_while():
    early, late = after(3), after(300)
    assert early.arrivals_per_s < 0.25
    assert late.arrivals_per_s == pytest.approx(2.0, rel=0.01)
    assert late.busy_fraction == pytest.approx(0.3, rel=0.01)


def test_it_fades_when_nothing_comes_any_more():
    history = after(300)
    last = reading(600, 90_000)
    for second in range(301, 361):
        history.observe(last, float(second))
    assert history.arrivals_per_s == pytest.approx(2.0 * 0.1353, rel=0.02)


def test_more_than_a_pod_can_compute_is_all_of_its_time():
    assert after(300, tokens=5000).busy_fraction == 1.0


def test_another_process_begins_at_nothing():
    history = after(300)
    history.observe(reading(1, 10, instance="two"), 301.0)
    assert (history.arrivals_per_s, history.busy_fraction) == (0.0, 0.0)


def test_a_reading_of_the_same_moment_changes_nothing():
    history = after(10)
    before = history.arrivals_per_s
    history.observe(reading(10_000, 10_000), 10.0)
    assert history.arrivals_per_s == before


@pytest.mark.parametrize(("ended", "left"), [(0, (2, 3, 700)), (1, (1, 3, 700)), (4, (0, 1, 700)), (9, (0, 0, 0))])
def test_requests_that_ended_since_the_reading_are_no_load_any_more(ended, left):
    history = after(10)
    history.ended = ended
    found = history.current(EndpointLoad(running=2, waiting=3, waiting_uncached_tokens=700))
    assert (found.running, found.waiting, found.waiting_uncached_tokens) == left
    assert found.arrivals_per_s == history.arrivals_per_s
    history.observe(reading(22, 3300), 11.0)
    assert history.ended == 0


@pytest.mark.parametrize(
    ("counted", "sent", "seen_s", "unheard"),
    [
        pytest.param((2, 1), SentRequests(3, (9.9, 9.8)), 10.0, 0, id="all"),
        pytest.param((2, 1), SentRequests(1, (9.9,)), 10.0, 0, id="more, of clients that pass the gateway by"),
        pytest.param((2, 0), SentRequests(3, (9.9, 9.8)), 9.8, 0, id="all but the newest"),
        pytest.param((1, 0), SentRequests(3, (9.9, 9.8)), 9.0, 0, id="none of the new ones"),
        pytest.param((0, 0), SentRequests(4, (9.9, 9.9)), 9.0, 2, id="two are on their way, two over"),
        pytest.param((2, 0), SentRequests(3, (9.9, 9.9, 9.5)), 9.5, 0, id="of two at once both may be on their way"),
        pytest.param((0, 0), SentRequests(2), 10.0, 2, id="all are over"),
        pytest.param((-5, -5), SentRequests(1, (9.9,)), 9.0, 0, id="numbers that cannot be"),
    ],
)
def test_what_a_pod_does_not_count_is_on_its_way_or_over(counted, sent, seen_s, unheard):
    running, waiting = counted
    history = PodHistory()
    history.observe(RuntimeState(running=running, waiting=waiting), 10.0, sent)
    assert (history.seen_s, history.unheard) == (seen_s, unheard)


@pytest.mark.parametrize(("age_s", "lag"), [(0.0, 1.0), (0.5, 1.5), (1e9, 5.0), (-3.0, 1.0)])
def test_an_old_snapshot_counts_less_of_what_was_sent(age_s, lag):
    assert lag_s(RuntimeState(heartbeat_age_s=age_s)) == lag


def test_ends_that_a_pod_knew_first_are_not_taken_off_again():
    history = PodHistory(ended=3, unheard=2)
    found = history.current(EndpointLoad(running=2, waiting=1))
    assert (found.running, found.waiting) == (1, 1)


def test_endpoints_that_are_gone_are_forgotten():
    history = LoadHistory()
    history.of("a").cold_s = 5.0
    history.keep({"a"})
    assert history.of("a").cold_s == 5.0
    history.keep({"b"})
    assert history.of("a").cold_s == float("-inf")
