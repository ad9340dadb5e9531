"""Whether a pod's queue takes a request, by the bounds that the pod reports: as the pod decides it."""

import pytest

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
    assert queue_room(state).takes(requests=inflight, tokens=0, first_token_s=0.0) is (refusal is None)


@pytest.mark.parametrize(
    ("room", "requests", "tokens", "first_token_s", "takes"),
    [
        (QueueRoom(places=2, most_tokens=10), 1, 99, 0.0, True),
        (QueueRoom(places=2, most_tokens=10), 2, 99, 0.0, True),  # nothing waits: the pod takes the longest prompt
        (QueueRoom(places=2, most_tokens=10), 3, 10, 0.0, True),
        (QueueRoom(places=2, most_tokens=10), 3, 11, 0.0, False),
        (QueueRoom(places=2, most_s=1.0), 2, 0, 1.0, True),
        (QueueRoom(places=2, most_s=1.0), 2, 0, 1.1, False),
        (QueueRoom(places=2, most_s=1.0), 1, 0, 9.0, True),
        (QueueRoom(most_requests=-1, most_tokens=-1, most_s=-1.0), 10**18, 1e300, 1e300, True),
    ],
)
def test_each_bound_counts_once_there_is_no_free_place(room, requests, tokens, first_token_s, takes):
    assert room.takes(requests=requests, tokens=tokens, first_token_s=first_token_s) is takes
