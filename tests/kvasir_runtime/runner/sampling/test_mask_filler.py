"""Masks in threads: in order, stopped behind one that takes too long, and never two at a time of one matcher."""

import threading

import numpy as np
import pytest

from kvasir_runtime.runner.sampling.mask_filler import MaskFiller, wait_for

WIDTH = 3


class Matcher:
    """Gives a mask of one number, after an event where there is one."""

    def __init__(self, number: int, come: threading.Event | None = None) -> None:
        self.number, self.come, self.begun = number, come, threading.Event()

    def fill(self, mask: np.ndarray) -> None:
        self.begun.set()
        assert self.come is None or self.come.wait(60)
        assert mask.shape == (1, WIDTH)
        mask.fill(self.number)


def test_masks_come_in_order():
    rows = MaskFiller().begin([Matcher(number) for number in range(5)], WIDTH)
    wait_for(rows, 60)
    assert all(row.is_ready for row in rows)
    assert [row.mask.tolist() for row in rows] == [[number] * WIDTH for number in range(5)]


def test_masks_behind_a_slow_one_are_computed_by_another_thread():
    filler, come = MaskFiller(), threading.Event()
    slow, quick = Matcher(1, come), Matcher(2)
    first, behind = filler.begin([slow, quick], WIDTH)
    assert slow.begun.wait(60)
    wait_for([first, behind], 0.001)
    assert not first.is_ready
    assert first.task.stop() == 1, "masks that are begun: the slow one"
    (again,) = filler.begin([quick], WIDTH)
    wait_for([again], 60)
    assert again.mask.tolist() == [2] * WIDTH
    come.set()
    first.task.ended.result(60)
    assert first.mask.tolist() == [1] * WIDTH
    assert not behind.is_ready


def test_matchers_that_were_slow_wait_for_one_another_and_for_no_other():
    filler, come = MaskFiller(), threading.Event()
    slow = [filler.begin([Matcher(number, come)], WIDTH, slow=True)[0] for number in range(6)]
    rows = filler.begin([Matcher(7)], WIDTH)
    wait_for(rows, 60)
    assert rows[0].is_ready
    assert not any(row.is_ready for row in slow)
    come.set()
    wait_for(slow, 60)
    assert all(row.is_ready for row in slow)


def test_masks_behind_drafts_hold_up_no_others():
    filler, come = MaskFiller(), threading.Event()
    drafted = [filler.begin([Matcher(number, come)], WIDTH, drafts=True)[0] for number in range(6)]
    rows = filler.begin([Matcher(7)], WIDTH) + filler.begin([Matcher(8)], WIDTH, slow=True)
    wait_for(rows, 60)
    assert [row.is_ready for row in rows] == [True, True]
    assert not any(row.is_ready for row in drafted)
    come.set()
    wait_for(drafted, 60)


def test_what_a_matcher_raises_is_raised():
    broken = Matcher(1)
    broken.fill = lambda mask: 1 // 0
    rows = MaskFiller().begin([broken], WIDTH)
    with pytest.raises(ZeroDivisionError):
        wait_for(rows, 60)
