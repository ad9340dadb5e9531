"""Masks on the logits: the right bits on every device, and the last word."""

import threading
from concurrent.futures import wait

import numpy as np
import pytest
import torch

from fakes.overlapping import Overlapping
from kvasir_runtime.core.plan import Chunk, Join, StepPlan
from kvasir_runtime.guide.compiler import GrammarCompiler
from kvasir_runtime.kernels.cpu.ops import CPU
from kvasir_runtime.runner.sampling import mask_filler
from kvasir_runtime.runner.sampling.draft_rests import LEAST_STEPS, MOST_STEPS, DraftRests
from kvasir_runtime.runner.sampling.grammar_mask_batch import GrammarMaskBatch, GuidedChunk
from kvasir_runtime.runner.sampling.grammar_masks import GrammarMasks
from kvasir_runtime.runner.sampling.mask_filler import MaskRow, MaskTask, wait_at_most
from kvasir_runtime.runner.state.device_stream import HostStream
from kvasir_runtime.wire import Grammar, SamplingConfig

NEVER = float("-inf")


def batch_of(places, bits):
    """As the thread gives it: a row of booleans for each place."""
    width = -(-bits.shape[1] // 32) * 32
    padded = np.zeros((len(bits), width), dtype=np.uint8)
    padded[:, : bits.shape[1]] = bits
    task = MaskTask((), np.packbits(padded, axis=1, bitorder="little").view(np.int32), np.array([len(bits)]))
    rows = [MaskRow(task, number) for number in range(len(bits))]
    return GrammarMaskBatch(tuple(GuidedChunk(place, place, 1, "") for place in places), rows)


def unused():
    raise AssertionError("no grammar is compiled here")


@pytest.mark.parametrize("device_stream", [HostStream(), Overlapping()], ids=["host", "device"])
@pytest.mark.parametrize(("vocab", "known"), [(70, 70), (70, 50), (64, 64), (50, 70), (33, 31)])
def test_only_allowed_ids_remain_and_only_in_guided_rows(device_stream, vocab, known):
    """vocab: of the logits; known: of the tokenizer, which may have fewer ids or more."""
    chance = np.random.default_rng(vocab)
    logits, bits = torch.randn(4, vocab), chance.integers(0, 2, (2, known)).astype(bool)
    before = logits.clone()
    GrammarMasks(GrammarCompiler(unused, ()), CPU, device_stream).mask_logits(logits, {}, batch_of([1, 3], bits))
    allowed = np.zeros((2, vocab), dtype=bool)
    allowed[:, : min(vocab, known)] = bits[:, :vocab]
    for row, mask in zip((1, 3), allowed, strict=True):
        assert (logits[row] == NEVER).tolist() == (~mask).tolist()
        assert torch.equal(logits[row][mask], before[row][mask])
    assert torch.equal(logits[[0, 2]], before[[0, 2]])


@pytest.mark.parametrize("device_stream", [HostStream(), Overlapping()], ids=["host", "device"])
def test_where_others_forbade_all_that_is_allowed_the_mask_alone_decides(device_stream):
    bits = np.array([[True, True, False, False]] * 2)
    logits = torch.tensor([[NEVER, NEVER, 3.0, 4.0], [NEVER, 2.0, 3.0, 4.0]])
    torn = {0: torch.tensor([1.0, 2.0, 3.0, 4.0]), 1: torch.tensor([9.0, 2.0, 3.0, 4.0])}
    GrammarMasks(GrammarCompiler(unused, ()), CPU, device_stream).mask_logits(logits, torn, batch_of([0, 1], bits))
    assert logits.tolist() == [[1.0, 2.0, NEVER, NEVER], [NEVER, 2.0, NEVER, NEVER]]


class Guide:
    """Of which only that is read here."""

    def __init__(self, *, is_checked: bool) -> None:
        self.is_checked = is_checked


def test_masks_that_decide_alone_are_given_before_they_are_computed():
    bits = np.array([[True, False], [False, True], [True, True]])
    batch = batch_of([0, 2, 5], bits)
    batch.guided = (
        GuidedChunk(0, 4, 1, Guide(is_checked=False)),
        GuidedChunk(2, 6, 1, "does not compile"),
        GuidedChunk(5, 1, 1, Guide(is_checked=False)),
    )
    batch.rows[1] = None
    given = batch.late_masks()
    assert {index: (late.mask.tolist(), late.number) for index, late in given.items()} == {0: ([1], 0), 5: ([3], 2)}
    assert all(late.num_done is batch.rows[0].task.done for late in given.values())


@pytest.mark.parametrize("why", ["beam", "checked", "dropped", "not begun"])
def test_no_masks_are_given_where_they_do_not_decide_alone(why):
    batch = batch_of([0, 1], np.array([[True], [True]]))
    guide = Guide(is_checked=why == "checked")
    batch.guided = GuidedChunk(0, 0, 1, "broken"), GuidedChunk(1, 1, 1, guide, is_beam=why == "beam")
    if why == "dropped":
        batch.drop([guide])
    if why == "not begun":
        batch.rows = None
    assert batch.late_masks() is None


def test_masks_behind_drafts_are_not_waited_for_though_they_come_one_after_the_other():
    """A step would wait as long as there are drafts."""
    task, left = MaskTask((), np.zeros((1 << 20, 1), dtype=np.int32)), threading.Event()

    def goes_on():
        while not left.is_set():
            task.done[0] += 1
            left.wait(0.001)

    thread = threading.Thread(target=goes_on)
    thread.start()
    try:
        wait_at_most([MaskRow(task, len(task.masks) - 1)], 0.02)
    finally:
        left.set()
        thread.join(60)
    task.ended.set_exception(MemoryError())
    with pytest.raises(MemoryError):
        wait_at_most([MaskRow(task, len(task.masks) - 1)], 0.0)


class LateAndBroken:
    """A grammar whose mask is late, and fails then. It stands for its compiler too."""

    vocab_size = 32

    def __init__(self) -> None:
        self.begun, self.may_fail = threading.Event(), threading.Event()

    def matcher(self, sampling, tokens):
        return self

    def fill(self, mask):
        self.begun.set()
        self.may_fail.wait(60)
        raise MemoryError


def test_what_a_late_mask_raises_is_raised_in_the_next_step():
    broken, stream = LateAndBroken(), HostStream()
    masks = GrammarMasks(broken, CPU, stream)
    sampling = SamplingConfig(max_tokens=1, grammar=Grammar(kind="regex", text="a"))
    join = Join(
        row=0, request_id="a", tokens=(1,), prompt_tokens=1, computed_tokens=0, tables=((0,),), sampling=sampling
    )
    masks.apply(StepPlan(step=1, joins=(join,)))
    chunk = Chunk(row=0, start=0, num_tokens=1, samples=True)
    late = masks.batch_of([chunk])
    masks.start(late)
    (row,) = late.rows
    assert broken.begun.wait(60)
    assert masks.defer_late(late, others=True) == [broken]
    broken.may_fail.set()
    wait([row.task.ended], 60)
    with pytest.raises(MemoryError):
        masks.start(masks.batch_of([chunk]))


class SlowBehindDrafts:
    """A grammar whose masks come late behind drafts alone. It stands for its compiler and its copies too."""

    vocab_size, is_checked, error = 32, False, ""

    def __init__(self, may_go_on) -> None:
        self.may_go_on, self.begun = may_go_on, threading.Event()

    def matcher(self, sampling, tokens):
        return SlowBehindDrafts(self.may_go_on if sampling.grammar.text == "slow" else None)

    def fork(self, tokens):
        return self

    def follow(self, draft):
        self.begun.set()
        return self.may_go_on is None or self.may_go_on.wait(60)

    def fill(self, mask):
        pass


def grammar_masks(texts, may_go_on):
    """Each text is the grammar of one row."""
    masks, joins = GrammarMasks(SlowBehindDrafts(may_go_on), CPU, HostStream()), []
    for row, text in enumerate(texts):
        sampling = SamplingConfig(max_tokens=9, grammar=Grammar(kind="regex", text=text))
        tables = ((row,),)
        join = Join(
            row=row, request_id=text, tokens=(1,), prompt_tokens=1, computed_tokens=0, tables=tables, sampling=sampling
        )
        joins.append(join)
    masks.apply(StepPlan(step=1, joins=tuple(joins)))
    return masks


def started(masks, num_rows):
    """A step in which each row has two drafts."""
    batch = masks.batch_of(
        [Chunk(row=row, start=0, num_tokens=3, samples=True, drafts=(5, 6)) for row in range(num_rows)]
    )
    masks.start(batch)
    return batch


def test_a_row_whose_mask_behind_a_draft_takes_too_long_rests_from_drafts_and_no_other():
    may_go_on = threading.Event()
    masks = grammar_masks(["slow", "quick"], may_go_on)
    try:
        first = started(masks, 2)
        assert first.guided[0].matcher.begun.wait(60)
        assert sorted(first.behind) == [1, 2, 4, 5]
        assert masks.defer_late(first, others=False) == []
        assert first.dropped >= {1, 2}
        for _ in range(LEAST_STEPS):
            batch = started(masks, 2)
            assert sorted(batch.behind) == [4, 5]
            wait([row.task.ended for row in batch.rows if row is not None], 60)
            masks.defer_late(batch, others=False)
            assert not batch.dropped
    finally:
        may_go_on.set()
    again = started(masks, 2)
    assert sorted(again.behind) == [1, 2, 4, 5]
    wait([row.task.ended for row in again.rows], 60)


def test_a_row_rests_twice_as_long_each_time_and_its_successor_not_at_all():
    rests, steps = DraftRests(), []
    for _ in range(6):
        rests.begin(3)
        assert not rests.takes_step(4)
        steps.append(sum(iter(lambda: rests.takes_step(3), False)))
    assert steps == [LEAST_STEPS, 32, 64, 128, MOST_STEPS, MOST_STEPS]
    rests.begin(3)
    rests.forget(3)
    assert not rests.takes_step(3)
    rests.begin(3)
    assert sum(iter(lambda: rests.takes_step(3), False)) == LEAST_STEPS


def test_masks_behind_drafts_of_rows_that_were_late_are_not_waited_for(monkeypatch):
    masks, waited = grammar_masks(["quick", "quick"], None), []
    masks._slow.add(0)
    batch = started(masks, 2)
    wait([row.task.ended for row in batch.rows], 60)
    monkeypatch.setattr(mask_filler, "wait_at_most", lambda rows, limit_s: waited.extend(rows))
    masks.defer_late(batch, others=False)
    assert waited == [batch.rows[4], batch.rows[5]]
