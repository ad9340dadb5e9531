"""What replicas served since a step began: beginnings, restarts of pods and of the operator, silence."""

from kvasir_api.state import RuntimeState, ServedTotals
from kvasir_operator.observed.replica import Replica
from kvasir_operator.observed.served_baseline import ServedBaseline, followed, since

STEP = ("new", 1)


def pod(uid, answered, *, failed=0, revision="old"):
    served = ServedTotals(answered=answered, failed=failed, ttft_s=float(answered), first_tokens=answered)
    return Replica(name=uid, uid=uid, revision=revision, phase="ready", reading=RuntimeState(served=served))


def test_a_step_counts_from_its_beginning():
    before = followed(None, ("old", 0), [pod("a", 100, failed=90)])
    began = followed(before, STEP, [pod("a", 120, failed=90)])
    later = followed(began, STEP, [pod("a", 150, failed=91), pod("b", 10, revision="new")])
    assert since(later.totals, pod("a", 150, failed=91)) == ServedTotals(
        answered=30, failed=1, ttft_s=30.0, first_tokens=30
    )
    assert since(later.totals, pod("b", 10, revision="new")).answered == 10
    following = followed(later, ("new", 2), [pod("a", 150), pod("b", 10, revision="new")])
    assert since(following.totals, pod("b", 12, revision="new")).answered == 2


def test_a_new_replica_that_answers_before_the_step_is_in_status_is_judged_by_all_of_it():
    before = followed(None, ("old", 0), [pod("a", 100), pod("b", 40, failed=20, revision="new")])
    began = followed(before, STEP, [pod("a", 100), pod("b", 40, failed=20, revision="new")])
    assert since(began.totals, pod("b", 40, failed=20, revision="new")).failed == 20


def test_after_a_restart_of_the_operator_the_new_revision_is_judged_by_all_that_it_served():
    found = followed(None, STEP, [pod("a", 100), pod("b", 40, failed=20, revision="new")])
    assert since(found.totals, pod("b", 40, failed=20, revision="new")).failed == 20
    assert since(found.totals, pod("a", 100)).answered == 0


def test_a_process_that_was_started_again_counts_from_zero():
    began = ServedBaseline(step=STEP, totals={"a": ServedTotals(answered=100)})
    later = followed(began, STEP, [pod("a", 5)])
    assert later.totals == {}
    assert since(later.totals, pod("a", 7)).answered == 7


def test_a_silent_replica_keeps_its_baseline():
    began = ServedBaseline(step=STEP, totals={"a": ServedTotals(answered=100)})
    silent = Replica(name="a", uid="a", phase="ready")
    assert followed(began, STEP, [silent]).totals == began.totals
    assert since(began.totals, silent) == ServedTotals()


def test_what_a_replica_served_while_it_was_silent_when_the_step_began_is_not_of_the_step():
    """All that it had ever served was, and an old incident held the rollout."""
    silent = Replica(name="a", uid="a", revision="old", phase="ready")
    starting = Replica(name="c", uid="c", revision="old", phase="starting")
    before = followed(None, ("old", 0), [pod("a", 100, failed=90)])
    began = followed(before, STEP, [silent, starting])
    assert since(began.totals, silent).answered == 0
    back = followed(began, STEP, [pod("a", 120, failed=90), pod("c", 3)])
    assert since(back.totals, pod("a", 120, failed=90)).answered == 0
    later = followed(back, STEP, [pod("a", 150, failed=91), pod("c", 3)])
    assert since(later.totals, pod("a", 150, failed=91)).failed == 1
    assert since(later.totals, pod("c", 3)).answered == 3  # it began after the step
