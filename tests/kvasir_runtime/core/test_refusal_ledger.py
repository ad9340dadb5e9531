"""A refusal was wrong if, by its deadline, the engine had done what was before the request."""

import pytest

from kvasir_runtime.core import refusal_ledger
from kvasir_runtime.core.refusal_ledger import RefusalLedger
from kvasir_runtime.core.ttft_predictor import QueuedWork, StepLoad

RATE = 1000.0


def busy(tokens=100, admitted=1):
    """A tenth of a second of full work."""
    return StepLoad(prompt_tokens=tokens, num_admitted=admitted, is_full=True, lacks_rows=True)


def observe(ledger, load, now, *, elapsed_s=0.1, num_rows=0):
    ledger.observe(load, elapsed_s, now, rate=RATE, num_rows=num_rows)


def run(work, *, service_s=0.0, deadline=1.0, loads=None, computed=()):
    """The seventh request is refused at 0; full steps of 0.1 s follow, or loads. computed: numbers and tokens."""
    ledger = RefusalLedger()
    observe(ledger, busy(), 0.0)
    ledger.refuse(ledger.place(7, work, 0.0, service_s), deadline)
    for number, num_tokens in computed:
        ledger.computed(number, num_tokens)
    for step, load in enumerate(loads or [busy()] * 12, 1):
        observe(ledger, load, 0.1 * step)
    return ledger.refused, ledger.rechecked, ledger.wrong


@pytest.mark.parametrize(
    ("work", "service_s", "wrong"),
    [
        (QueuedWork(900, 50, 9), 0.0, 1),  # a thousand tokens and ten rows by then
        (QueuedWork(1100, 50, 9), 0.0, 0),
        (QueuedWork(900, 50, 11), 0.0, 0),
        (QueuedWork(900, 50, 9), 0.3, 0),  # it had to begin earlier
        (QueuedWork(600, 50, 6), 0.3, 1),
    ],
)
def test_work_done_by_the_deadline_decides(work, service_s, wrong):
    assert run(work, service_s=service_s) == (1, 1, wrong)


@pytest.mark.parametrize(
    ("computed", "later", "wrong"),
    [
        ([(8, 40)] * 5, 0, 0),  # two hundred of the thousand tokens passed it
        ([(8, 40)] * 5, 100, 1),  # and half of that was expected
        ([(6, 40)] * 5, 0, 1),  # these were before it
        ([(8, 50)] * 5, 0, 1),  # and these are no shorter
    ],
)
def test_shorter_prompts_that_passed_are_not_counted_as_done(computed, later, wrong):
    assert run(QueuedWork(900, 50, 9, later), computed=computed)[2] == wrong


def test_others_pass_in_half_of_the_steps_at_most():
    assert run(QueuedWork(500, 50, 9), computed=[(8, 40)] * 100)[2] == 1
    assert run(QueuedWork(501, 50, 9), computed=[(8, 40)] * 100)[2] == 0


def test_nothing_is_checked_before_the_deadline():
    assert run(QueuedWork(0, 0, 0), deadline=5.0) == (1, 0, 0)


def test_a_moment_without_a_queue_would_have_admitted_it():
    idle = StepLoad(prompt_tokens=0, num_admitted=0, is_full=False, lacks_rows=False)
    assert run(QueuedWork(100, 50, 500), loads=[*[busy()] * 5, idle, *[busy()] * 6])[2] == 1


def test_time_without_steps_counts_as_what_could_have_been_computed():
    ledger = RefusalLedger()
    observe(ledger, busy(), 0.0)
    ledger.refuse(ledger.place(7, QueuedWork(3000, 0, 0), 0.0, 0.0), 4.0)
    observe(ledger, busy(), 10.0)
    assert ledger.wrong == 1


def test_deadlines_that_are_far_are_not_kept_without_bound():
    ledger = RefusalLedger()
    for number in range(refusal_ledger.MAX_OPEN + 10):
        ledger.refuse(ledger.place(7, QueuedWork(0, 0, 0), 0.0, 0.0), 3600.0 + number)
    observe(ledger, busy(), 0.1)
    observe(ledger, busy(), 10_000.0)
    assert (ledger.refused, ledger.rechecked) == (refusal_ledger.MAX_OPEN + 10, refusal_ledger.MAX_OPEN)
