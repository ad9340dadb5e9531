"""Copies on a stream that ends them later than it was asked: on a CPU that behaves as a card does."""

import pytest
import torch

from fakes.overlapping import OverlappingCopies
from fakes.store_process import key
from kvasir_runtime.core.plan import BlockLoad, BlockStore, HostChanges, StepPlan
from kvasir_runtime.runner.kv_offload.pinned_transfers import PinnedTransfers

BLOCK_BYTES = 64


@pytest.fixture
def stream():
    return OverlappingCopies()


@pytest.fixture(params=[1, 4])
def blocks(request):
    """Of one piece, or of several."""
    made = torch.arange(16, dtype=torch.uint8)[None, :, None]
    return made.repeat(request.param, 1, BLOCK_BYTES // request.param)


def stores(*numbers):
    return tuple(BlockStore(number, key(number)) for number in numbers)


def test_what_is_stored_comes_back_once_the_stream_got_there(blocks, stream):
    transfers = PinnedTransfers(blocks, 4, stream)
    transfers.submit(StepPlan(step=1, stores=stores(1, 2)))
    transfers.submit(StepPlan(step=2, loads=(BlockLoad(key(1), 9), BlockLoad(key(7), 10))))
    transfers.submit(StepPlan(step=3))
    assert transfers.completed(0.0).through == 0
    stream.run(2 * len(blocks))
    done = transfers.completed(0.0)
    assert (done.through, done.num_stored, done.loaded) == (1, 2, ())
    assert done.store_s > 0
    assert (blocks[:, 9] == 9).all(), "it has not arrived"
    stream.run(len(blocks))
    done = transfers.completed(0.0)
    assert (done.through, done.num_stored, done.loaded) == (3, 0, (9,))
    assert done.load_s > 0
    assert (blocks[:, 9] == 1).all()
    assert set(transfers.changes().added) == {key(1), key(2)}


def test_what_was_used_longest_ago_is_written_over(blocks, stream):
    transfers = PinnedTransfers(blocks, 3, stream)
    transfers.submit(StepPlan(step=1, stores=stores(1, 2, 3)))
    transfers.submit(StepPlan(step=2, stores=stores(1)))
    transfers.submit(StepPlan(step=3, stores=stores(4, 5)))
    transfers.submit(StepPlan(step=4, loads=tuple(BlockLoad(key(n), 8 + n) for n in range(1, 6))))
    stream.run(100)
    done = transfers.completed(0.0)
    assert (done.num_stored, done.loaded) == (5, (9, 12, 13))
    assert [blocks[0, 8 + n, 0].item() for n in (1, 4, 5)] == [1, 4, 5]


def test_nothing_is_found_once_it_was_told_to_forget(blocks, stream):
    transfers = PinnedTransfers(blocks, 3, stream)
    transfers.submit(StepPlan(step=1, stores=stores(1)))
    transfers.forget()
    assert transfers.changes() == HostChanges(reset=True)
    transfers.submit(StepPlan(step=2, loads=(BlockLoad(key(1), 9),)))
    stream.run(100)
    assert transfers.completed(0.0).loaded == ()
    assert PinnedTransfers(blocks, 3, stream).hash_salt != transfers.hash_salt


def test_it_waits_no_longer_than_told(blocks, stream):
    transfers = PinnedTransfers(blocks, 3, stream)
    assert transfers.completed(60.0).through == -1, "nothing is on its way"
    transfers.submit(StepPlan(step=1, stores=stores(1)))
    assert transfers.completed(0.002).through == 0


def test_a_dropped_block_is_found_no_more(blocks, stream):
    transfers = PinnedTransfers(blocks, 3, stream)
    transfers.submit(StepPlan(step=1, stores=stores(1, 2)))
    transfers.submit(StepPlan(step=2, drops=(key(1), key(9))))
    transfers.submit(StepPlan(step=3, loads=(BlockLoad(key(1), 9), BlockLoad(key(2), 10))))
    stream.run(100)
    done = transfers.completed(0.0)
    assert (done.through, done.loaded) == (3, (10,))
    assert transfers.changes().added == (key(2),)
