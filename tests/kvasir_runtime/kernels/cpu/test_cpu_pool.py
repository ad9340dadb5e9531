"""The team of threads: every piece is computed once, and barriers show what was written before them."""

import ctypes
import os
import threading
import time

import numpy as np
import pytest

POINTER = ctypes.c_void_p


def probed(probes, pieces, phases):
    taken = np.zeros((phases, pieces), dtype=np.int64)
    sums = np.full((phases, probes.threads), -1, dtype=np.int64)
    probe = probes.function("probe", ctypes.c_int64, ctypes.c_int64, POINTER, POINTER)
    probe(pieces, phases, taken.ctypes.data, sums.ctypes.data)
    return taken, sums


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize(("pieces", "phases"), [(0, 3), (1, 1), (7, 50), (1000, 20)])
def test_every_piece_is_taken_once_and_seen_after_the_barrier(probes, threads, pieces, phases):
    assert probes.start(threads) == threads
    try:
        for _ in range(3):
            taken, sums = probed(probes, pieces, phases)
            assert (taken == 1).all()
            assert (sums[:, 0] == pieces).all()
            assert ((sums == pieces) | (sums == -1)).all()  # a worker that woke too late is not waited for
    finally:
        probes.start(2)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_workers_begin_before_the_caller_takes_part(probes, threads):
    assert probes.start(threads) == threads
    begin = probes.function("probe_begin", ctypes.c_int64, ctypes.c_int64, POINTER, POINTER)
    try:
        taken, sums = np.zeros((9, 100), dtype=np.int64), np.full((9, threads), -1, dtype=np.int64)
        begin(100, 9, taken.ctypes.data, sums.ctypes.data)
        deadline = time.monotonic() + 60
        while threads > 1 and (sums[8, 1:] == -1).all() and time.monotonic() < deadline:
            time.sleep(0.001)
        assert (taken == (threads > 1)).all()
        probes.finish()
        assert (taken == 1).all()
        assert (sums[:, 0] == 100).all()
        probes.finish()  # nothing is begun, so there is nothing to do
        others, _ = probed(probes, 5, 3)
        assert (others == 1).all()
    finally:
        probes.start(2)


def test_what_was_begun_is_finished_before_more_begins(probes):
    begin = probes.function("probe_begin", ctypes.c_int64, ctypes.c_int64, POINTER, POINTER)
    taken, sums = np.zeros((3, 5), dtype=np.int64), np.zeros((3, 2), dtype=np.int64)
    for _ in range(50):
        taken[:] = 0
        begin(5, 3, taken.ctypes.data, sums.ctypes.data)
        others, _ = probed(probes, 7, 2)
        assert (taken == 1).all()
        assert (others == 1).all()


def test_callers_on_several_threads_take_turns(probes):
    wrong = []

    def call():
        for _ in range(200):
            taken, sums = probed(probes, 5, 3)
            if (taken != 1).any() or (sums[:, 0] != 5).any():
                wrong.append((taken, sums))

    callers = [threading.Thread(target=call) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own(probes):
    probed(probes, 5, 3)
    child = os.fork()
    if not child:
        taken, sums = probed(probes, 5, 3)
        os._exit(0 if (taken == 1).all() and (sums[:, 0] == 5).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
