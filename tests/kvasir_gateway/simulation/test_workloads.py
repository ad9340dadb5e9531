"""The catalogue of workloads: the same seed says the same, and conversations are what their workload declares."""

from random import Random

import pytest

from kvasir_gateway.simulation.workloads import WORKLOADS, Chat, LogNormalLength, Pieces


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
def test_the_same_seed_says_the_same(workload):
    def told(seed):
        random, pieces = Random(seed), Pieces()
        return [workload.talk(random, pieces) for _ in range(5)], list(workload.arrivals(random))[:50]

    assert told(3) == told(3)
    assert told(3) != told(4)
    assert bool(workload.clients) != bool(workload.per_s)


def test_there_are_ten():
    assert len({workload.name for workload in WORKLOADS}) == 10


def test_a_prefix_is_shared_by_its_name_alone():
    pieces, random = Pieces(), Random(1)
    talks = [Chat(prefixes=3, shared=640)(random, pieces) for _ in range(30)]
    assert len({talk.prefix for talk in talks}) == 3
    assert {len(talk.prefix) for talk in talks} == {10}
    assert not set(pieces.new(640)) & set(talks[0].prefix)


def test_popular_prefixes_come_more_often():
    pieces, random = Pieces(), Random(1)
    first = pieces.of("prefix", 0, 640)
    talks = [Chat(prefixes=50, shared=640, exponent=1.0)(random, pieces) for _ in range(500)]
    assert sum(talk.prefix == first for talk in talks) > 60


def test_lengths_have_their_mean_and_bounds():
    random, lengths = Random(1), LogNormalLength(mean=1000, least=200, most=3000)
    drawn = [lengths.draw(random) for _ in range(4000)]
    assert sum(drawn) / len(drawn) == pytest.approx(1000, rel=0.05)
    assert min(drawn) >= 200
    assert max(drawn) <= 3000


def test_pauses_come_between_turns_only():
    talk = Chat(turns=(4, 4), pause_s=5.0)(Random(1), Pieces())
    assert talk.turns[0].pause_s == 0.0
    assert all(turn.pause_s > 0 for turn in talk.turns[1:])
