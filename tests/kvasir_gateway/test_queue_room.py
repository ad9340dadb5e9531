"""Whether a pod's queue takes a request, by the bounds that the pod reports: as the pod decides it."""

import pytest

from fakes.overload import Callers, simulated
from kvasir_api.state import QueueBounds, RuntimeState, TtftForecast
from kvasir_gateway.queue_room import NO_BOUNDS, QueueRoom, queue_room
from kvasir_runtime.server.admission import queue_refusal


@pytest.mark.parametrize(
    ("state", "room"),
    [
        (RuntimeState(max_sequences=8, running=3, queue=QueueBounds(requests=5)), QueueRoom(places=8, most_requests=5)),
        (RuntimeState(max_sequences=8, running=3, waiting=1), QueueRoom(places=3)),
        (RuntimeState(max_sequences=8, running=-3, waiting=1), QueueRoom()),
        (RuntimeState(queue=QueueBounds(tokens=7, seconds=9.0)), QueueRoom(most_tokens=7)),
        (
            RuntimeState(queue=QueueBounds(seconds=9.0), ttft=TtftForecast(queue_s=1.0, calibrated=True)),
            QueueRoom(most_s=9.0),
        ),
        (RuntimeState(queue=QueueBounds(seconds=9.0), ttft=TtftForecast(calibrated=True)), NO_BOUNDS),
    ],
)
def test_a_pods_room_follows_from_its_report(state, room):
    assert queue_room(state) == room


@pytest.mark.parametrize("running", [0, 2, 4])
@pytest.mark.parametrize("waiting", [0, 1, 3])
@pytest.mark.parametrize("recent", range(8))
def test_a_count_is_judged_as_the_pod_does(running, waiting, recent):
    """recent: requests that it has got since its report."""
    state = RuntimeState(max_sequences=4, running=running, waiting=waiting, queue=QueueBounds(requests=3))
    inflight = running + waiting + recent
    refusal = queue_refusal(state, inflight=inflight + 1, max_sequences=4, max_waiting=3)
    assert queue_room(state).takes(requests=inflight, tokens=0, wait_s=0.0, first_token_s=0.0) is (refusal is None)


@pytest.mark.parametrize(
    ("room", "requests", "tokens", "wait_s", "first_token_s", "takes"),
    [
        (QueueRoom(places=2, most_tokens=10), 1, 99, 0.0, 0.0, True),
        (QueueRoom(places=2, most_tokens=10), 2, 99, 0.0, 0.0, True),  # nothing waits: the pod takes the longest prompt
        (QueueRoom(places=2, most_tokens=10), 3, 10, 0.0, 0.0, True),
        (QueueRoom(places=2, most_tokens=10), 3, 11, 0.0, 0.0, False),
        (QueueRoom(places=2, most_s=1.0), 2, 0, 1.0, 1.0, True),
        (QueueRoom(places=2, most_s=1.0), 2, 0, 0.0, 1.1, False),
        (QueueRoom(places=2, most_s=1.0), 1, 0, 1.0, 1.0, True),
        (QueueRoom(places=2, most_s=1.0), 1, 0, 0.2, 1.1, False),  # a place is free, but a prompt is computed
        (QueueRoom(places=2, most_s=1.0), 1, 0, 0.1, 9.0, True),  # it is free, and its own prompt alone is long
        (QueueRoom(places=2, most_s=1.0), 0, 0, 9.0, 9.0, True),
        (QueueRoom(most_requests=-1, most_tokens=-1, most_s=-1.0), 10**18, 1e300, 1e300, 1e300, True),
    ],
)
def test_each_bound_counts_as_it_does_for_the_pod(room, requests, tokens, wait_s, first_token_s, takes):
    found = room.takes(requests=requests, tokens=tokens, wait_s=wait_s, first_token_s=first_token_s)
    assert found is takes


def test_seconds_are_judged_as_the_pod_does_with_places_to_spare():
    """An engine that takes a second at most has one short answer, then a long prompt beside it, and then no more."""
    engine = simulated(max_sequences=8, max_waiting_s=1.0, noise=0.0)
    Callers(engine, max_retries=0).load(10.0, 0.0, 30.0)
    engine.run(until=400.0)
    bounds, own_s = QueueBounds(seconds=1.0), 3600 * engine.token_s * 1.25
    engine.submit(50, 300, lambda _: None)
    found = []
    for steps in (2, 3, 20):
        for _ in range(steps):
            engine.step()
        state = engine.scheduler.report(RuntimeState(max_sequences=8, queue=bounds))
        refusals, queue_s = [], state.ttft.queue_s
        engine.submit(3600, 1, refusals.append)
        takes = queue_room(state).takes(
            requests=state.running, tokens=3600, wait_s=queue_s, first_token_s=queue_s + own_s
        )
        found.append((state.running, takes, not refusals))
    assert found == [(1, True, True), (2, False, False), (1, True, True)]
