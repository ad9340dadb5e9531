"""Copies run beside the caller, in whatever order, and are reported in the order of the plans."""

import threading

import numpy as np
import pytest

from fakes.store_process import BLOCK_BYTES, content, found, key, opened
from kvasir_runtime.core.plan import BlockLoad, BlockStore, StepPlan
from kvasir_runtime.runner.kv_offload import transfer_thread
from kvasir_runtime.runner.kv_offload.transfer_thread import TransferThread

WAIT_S = 60.0


@pytest.fixture(params=[1, 4])
def blocks(request):
    """Of one piece, or of several."""
    made = np.zeros((request.param, 40, BLOCK_BYTES // request.param), dtype=np.uint8)
    for number in range(20):
        made[:, number] = np.frombuffer(content(number), dtype=np.uint8).reshape(request.param, -1)
    return made


def settled(transfers, step):
    """All that was reported until everything up to a step had ended."""
    loaded, stored = (), 0
    while True:
        done = transfers.completed(WAIT_S)
        loaded, stored = loaded + done.loaded, stored + done.num_stored
        if done.through >= step:
            return loaded, stored, done


def stores(*numbers):
    return tuple(BlockStore(number, key(number)) for number in numbers)


def test_what_is_stored_comes_back_into_other_blocks(tmp_path, blocks):
    transfers = TransferThread(opened(tmp_path), blocks)
    assert transfers.completed(0.0).through == -1
    transfers.submit(StepPlan(step=1, stores=stores(*range(20))))
    loaded, stored, _ = settled(transfers, 1)
    assert (loaded, stored) == ((), 20)
    assert {key(number) for number in range(20)} == set(transfers.changes().added)
    loads = (BlockLoad(key(3), 23), BlockLoad(key(99), 25), BlockLoad(key(4), 24))
    transfers.submit(StepPlan(step=2, loads=loads))
    loaded, stored, done = settled(transfers, 2)
    assert (set(loaded), stored) == ({23, 24}, 0)
    assert np.array_equal(blocks[:, 23], blocks[:, 3])
    assert np.array_equal(blocks[:, 24], blocks[:, 4])
    assert done.load_s >= 0


def test_a_plan_without_copies_ends_at_once_and_those_before_it_first(tmp_path, blocks):
    store, may_go_on = opened(tmp_path), threading.Event()
    put = store.put
    store.put = lambda batch: may_go_on.wait(WAIT_S) and put(batch)
    transfers = TransferThread(store, blocks)
    transfers.submit(StepPlan(step=1))
    assert transfers.completed(0.0).through == 1
    transfers.submit(StepPlan(step=2, stores=stores(1)))
    transfers.submit(StepPlan(step=3))
    assert transfers.completed(0.001).through == 1
    may_go_on.set()
    assert settled(transfers, 3)[1] == 1


def test_loads_pass_the_stores_that_wait_and_count_with_their_plan(tmp_path, blocks):
    store = opened(tmp_path)
    store.put([(key(1), content(1))])
    begun, may_go_on, order = threading.Event(), threading.Event(), []
    put, get = store.put, store.get

    def slow_put(batch):
        begun.set()
        may_go_on.wait(WAIT_S)
        order.append("store")
        return put(batch)

    def noted_get(batch):
        order.append("load")
        return get(batch)

    store.put, store.get = slow_put, noted_get
    transfers = TransferThread(store, blocks)
    transfers.submit(StepPlan(step=1, stores=stores(2)))
    assert begun.wait(WAIT_S)
    transfers.submit(StepPlan(step=2, stores=stores(3)))
    transfers.submit(StepPlan(step=3, loads=(BlockLoad(key(1), 30),)))
    assert transfers.completed(0.0).loaded == ()
    may_go_on.set()
    assert settled(transfers, 3)[:2] == ((30,), 2)
    assert order == ["store", "load", "store"]


def test_an_error_in_a_copy_is_a_miss(tmp_path, blocks, caplog):
    store = opened(tmp_path)

    def broken(batch):
        raise RuntimeError("the memory is gone")

    store.put = store.get = broken
    transfers = TransferThread(store, blocks)
    transfers.submit(StepPlan(step=1, stores=stores(1), loads=(BlockLoad(key(1), 30),)))
    assert settled(transfers, 1)[:2] == ((), 0)
    assert "could not be loaded" in caplog.text


def test_forgetting_empties_the_file_before_what_comes_later(tmp_path, blocks):
    transfers = TransferThread(opened(tmp_path), blocks)
    transfers.submit(StepPlan(step=1, stores=stores(1, 2)))
    settled(transfers, 1)
    transfers.forget()
    transfers.submit(StepPlan(step=2, loads=(BlockLoad(key(1), 30),)))
    assert settled(transfers, 2)[0] == ()
    transfers.submit(StepPlan(step=3, stores=stores(3)))
    assert settled(transfers, 3)[1] == 1
    assert transfers.changes().added == (key(3),)


def test_a_file_that_cannot_be_erased_now_is_erased_later(tmp_path, blocks, monkeypatch):
    monkeypatch.setattr(transfer_thread, "RETRY_S", 0.001)
    store, failures = opened(tmp_path), [False, False]
    forget = store.forget
    store.forget = lambda: failures.pop() if failures else forget()
    transfers = TransferThread(store, blocks)
    transfers.submit(StepPlan(step=1, stores=stores(1)))
    settled(transfers, 1)
    transfers.forget()
    transfers.submit(StepPlan(step=2, loads=(BlockLoad(key(1), 30),)))
    assert settled(transfers, 2)[0] == ()
    transfers.submit(StepPlan(step=3, stores=stores(3)))
    settled(transfers, 3)
    assert not failures
    assert transfers.changes().added == (key(3),)


def test_what_was_queued_before_forgetting_is_neither_stored_nor_loaded(tmp_path, blocks):
    store, begun, may_go_on = opened(tmp_path), threading.Event(), threading.Event()
    store.put([(key(5), content(5))])
    put = store.put

    def slow_put(batch):
        begun.set()
        may_go_on.wait(WAIT_S)
        return put(batch)

    store.put = slow_put
    transfers = TransferThread(store, blocks)
    transfers.submit(StepPlan(step=1, stores=stores(1)))
    assert begun.wait(WAIT_S)
    transfers.submit(StepPlan(step=2, stores=stores(2), loads=(BlockLoad(key(5), 30),)))
    transfers.forget()
    transfers.submit(StepPlan(step=3, stores=stores(3)))
    may_go_on.set()
    assert settled(transfers, 3)[:2] == ((), 1)
    assert transfers.changes().added == (key(3),)
    (file,) = tmp_path.iterdir()
    kept = file.read_bytes()
    assert [number for number in (1, 2, 3, 5) if bytes(content(number)) in kept] == [3]


def test_blocks_are_dropped_behind_those_that_earlier_plans_store(tmp_path, blocks):
    transfers, other = TransferThread(opened(tmp_path), blocks), opened(tmp_path)
    transfers.submit(StepPlan(step=1, stores=stores(1, 2, 3)))
    transfers.submit(StepPlan(step=2, drops=(key(1), key(3), key(9)), stores=stores(4)))
    assert settled(transfers, 2)[1] == 4
    assert found(other, [1, 2, 3, 4]) == [2, 4]
    transfers.submit(StepPlan(step=3, stores=stores(1)))
    assert settled(transfers, 3)[1] == 1
    assert found(other, [1, 2, 3, 4]) == [1, 2, 4], "it was computed again"


def test_without_a_thread_copies_end_at_once_and_a_later_plan_gets_one(tmp_path, blocks, monkeypatch):
    store = opened(tmp_path)
    store.put([(key(1), content(1)), (key(2), content(2))])
    transfers = TransferThread(store, blocks)

    def full():
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(transfers, "_started", full)
        transfers.submit(StepPlan(step=1, loads=(BlockLoad(key(1), 23),), stores=stores(3), drops=(key(2),)))
        done = transfers.completed(0.0)
    assert (done.through, done.loaded, done.num_stored) == (1, (), 0)
    assert found(store, [1, 2, 3]) == [1]
    transfers.submit(StepPlan(step=2, loads=(BlockLoad(key(1), 23),)))
    assert settled(transfers, 2)[0] == (23,)
