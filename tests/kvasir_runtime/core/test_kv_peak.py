"""Requests are admitted while the blocks of all that run will suffice to their ends."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.runner import FakeRunner
from fakes.serving import request, serving
from fakes.simulated_engine import SimulatedEngine
from kvasir_api.cache_groups import FULL, LayerAttention
from kvasir_api.state import RuntimeState
from kvasir_runtime.core.answer_lengths import AnswerLengths
from kvasir_runtime.core.kv_peak import KvClaim, peak
from kvasir_runtime.core.limits import Limits

SEQUENCES = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 60)), min_size=1, max_size=12)


class NeverKnown(AnswerLengths):
    """The rule without lengths: a prompt must fit, and a block for each row."""

    @property
    def is_known(self):
        return False


def blocks(num_tokens, block_size):
    return -(-num_tokens // block_size)


def claims_of(sequences, block_size):
    claims = [KvClaim(rest, blocks(length, block_size), 1) for length, rest in sequences]
    return sorted(claims, reverse=True)


def simulated_peak(sequences, block_size):
    """All get a token in each step; one that has all of its own leaves before the next."""
    most = 0
    for step in range(max(rest for _, rest in sequences) + 1):
        most = max(most, sum(blocks(length + step, block_size) for length, rest in sequences if rest >= step))
    return most


@pytest.mark.parametrize(
    ("claims", "want"),
    [
        ([], 0),
        ([KvClaim(0, 7, 1)], 7),
        ([KvClaim(10, 5, 1)], 15),
        ([KvClaim(10, 5, 1), KvClaim(2, 20, 1)], 29),  # both, when the short one ends
        ([KvClaim(30, 5, 1), KvClaim(2, 20, 1)], 35),  # the long one alone
        ([KvClaim(10, 5, 3), KvClaim(0, 4, 0)], 35),  # three tables grow
    ],
)
def test_the_peak_is_where_one_of_them_ends(claims, want):
    assert peak(claims, 1) == want


@given(sequences=SEQUENCES, block_size=st.sampled_from([1, 4, 16]))
def test_the_peak_is_no_less_than_what_comes_and_a_block_each_more_at_most(sequences, block_size):
    found = peak(claims_of(sequences, block_size), block_size)
    comes = simulated_peak(sequences, block_size)
    assert comes <= found <= comes + len(sequences)
    assert block_size > 1 or found == comes


def run(lengths, attentions, num_blocks, data_ranks):
    """Preemptions, and the time of a load that the cache cannot hold: about 40 of 96 that have a row. Answers have 60
    tokens in the mean, many fewer and some several times as many, and may have 400.
    """
    limits = Limits(
        num_blocks=num_blocks,
        data_ranks=data_ranks,
        block_size=4,
        max_batch_tokens=256,
        max_sequences=96,
        max_model_len=4096,
        attentions=attentions,
        prefix_cache=False,
    )
    engine = SimulatedEngine(limits)
    engine.scheduler._admission.lengths = lengths
    draw = random.Random(1)
    for _ in range(500):
        engine.submit(draw.randint(20, 100), 1 + int(draw.expovariate(1 / 60)), lambda _: None)
    engine.run(until=1000.0)
    totals = engine.scheduler.report(RuntimeState()).totals
    assert totals.completions == 500
    return totals.preemptions, engine.seconds_of_steps


@pytest.mark.parametrize(
    ("attentions", "num_blocks", "data_ranks"),
    [((FULL,), 800, 1), ((FULL, LayerAttention("window", 48)), 900, 1), ((FULL,), 800, 2)],
)
def test_few_are_preempted_and_throughput_stays(attentions, num_blocks, data_ranks):
    before, seconds_before = run(NeverKnown(), attentions, num_blocks, data_ranks)
    now, seconds = run(AnswerLengths(), attentions, num_blocks, data_ranks)
    assert before >= 10
    assert now <= before / 2
    assert seconds <= 1.03 * seconds_before


def test_a_request_alone_is_admitted_whatever_is_expected_of_it():
    lengths = AnswerLengths()
    for _ in range(32):
        lengths.add(10_000)
    served = serving(num_blocks=16, max_sequences=4)
    served.scheduler._admission.lengths = lengths
    served.submit(*(request(f"r{number}", [5, 6, number], max_tokens=50) for number in range(3)))
    served.finish()
    assert served.scheduler.report(RuntimeState()).totals.preemptions == 0


def test_short_answers_leave_room_for_more():
    """Each may have 400 tokens and has 4: all run at once, as before."""
    lengths = AnswerLengths()
    for _ in range(32):
        lengths.add(4)
    served = serving(runner=FakeRunner(max_model_len=512), num_blocks=128, max_sequences=16, max_batch_tokens=512)
    served.scheduler._admission.lengths = lengths
    served.submit(*(request(f"r{number}", range(1, 21), max_tokens=400, salt=bytes([number])) for number in range(16)))
    served.step()
    assert served.scheduler.report(RuntimeState()).running == 16


def test_prompts_that_are_computed_for_another_replica_say_nothing_of_the_length_of_answers():
    """Their one token would soon be all that is known, and too many answers would be admitted."""
    lengths = AnswerLengths()
    for _ in range(32):
        lengths.add(50)
    served = serving(num_blocks=64)
    served.scheduler._admission.lengths = lengths
    for number in range(300):
        served.submit(request(f"r{number}", [5, 6, 7], max_tokens=1, for_peer=number > 0))
        served.finish()
    assert [lengths.expected(0), lengths.expected(1)] == [50, 49]
    assert lengths.most_expected == 51
