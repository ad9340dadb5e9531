"""The simulated pod: steps, its cache, and what it reports."""

import pytest

from kvasir_api.prefix_digest import FollowedPrefixes
from kvasir_gateway.simulation.simulated_pod import DigestLog, PodRequest, PodSpeed, SimulatedPod

SPEED = PodSpeed(
    prefill_tokens_per_s=6400.0, step_base_s=0.01, step_slope_s=0.001, chunk_tokens=640, kv_tokens=6400, slots=2
)


def pieces(*numbers):
    return tuple(number.to_bytes(8) for number in numbers)


def request(number, text, *, output=4, at=0.0):
    return PodRequest(number=number, at=at, pieces=text, answer=pieces(1000 + number), output=output)


def finished(pod, *requests):
    """Submit, compute until idle, and the end."""
    now = max((r.at for r in requests), default=0.0)
    for each in requests:
        pod.submit(each)
    while not pod.is_idle:
        now = pod.step(now)
        pod.collect(now)
    return now


@pytest.fixture
def pod():
    return SimulatedPod("p:1", SPEED)


def test_a_prompt_takes_its_rate_and_each_token_a_step(pod):
    one = request(1, pieces(*range(20)))
    finished(pod, one)
    assert one.first_at == pytest.approx(1280 / 6400)
    assert one.ended_at == pytest.approx(one.first_at + 3 * 0.011)


def test_what_was_computed_before_is_found(pod):
    finished(pod, request(1, pieces(*range(20))))
    again = request(2, pieces(*range(20), 99))
    assert again.first_at < 0
    finished(pod, again)
    assert again.hits == 20
    assert pod.state("i").totals.uncached_prompt_tokens == 21 * 64


def test_the_prefix_used_longest_ago_leaves_first_and_its_end_before_its_beginning(pod):
    finished(pod, request(1, pieces(*range(50))))
    finished(pod, request(2, pieces(*range(100, 170))))
    held = pod.cache.hits(pieces(*range(50)))
    assert 0 < held < 50
    assert pod.cache.hits(pieces(*range(100, 170))) == 70


def test_no_more_requests_than_slots_run_and_the_others_wait(pod):
    for number in range(5):
        pod.submit(request(number, pieces(number), output=50))
    pod.collect(pod.step(0.0))
    state = pod.state("i")
    assert (state.running, state.waiting, state.waiting_uncached_tokens) == (2, 3, 192)
    assert state.ttft.queue_s > 0


def test_the_share_of_prompts_beside_decoding_is_measured(pod):
    pod.submit(request(1, pieces(1), output=100))
    pod.collect(pod.step(0.0))
    pod.submit(request(2, pieces(*range(10, 30))))
    pod.collect(pod.step(0.02))
    assert pod.state("i").rates.stall_fraction == pytest.approx((0.1 + 0.001 - 0.011) / (0.1 + 0.001), rel=0.02)


def test_every_reader_follows_the_digest(pod):
    log, often, seldom = DigestLog(pod), FollowedPrefixes(), FollowedPrefixes()
    for number in range(12):
        finished(pod, request(number, pieces(*range(30 * number, 30 * number + 30))))
        assert often.take("i", log.digest(often.after))
        assert often.hashes == pod.cache.noted.hashes
        if number % 5 == 0:
            assert seldom.take("i", log.digest(seldom.after))
            assert seldom.hashes == often.hashes
    assert len(often.hashes) <= SPEED.kv_tokens // 64
