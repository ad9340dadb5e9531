"""When a rollout that makes no progress is overdue, and when its clock starts again."""

import pytest

from fakes.situations import again, findings, replica
from kvasir_api.state import RuntimeState
from kvasir_operator.stages import RolloutTarget
from kvasir_operator.status.progress import overdue, progress

READY, OLD = replica("ready"), replica("ready", revision="old", name="old")


def progressed(before, found, now):
    """The progress that these findings show."""
    return progress(before, found.seen, found.plan, wanted=found.wanted, now=now)


def test_no_deadline_runs_while_a_rollout_stands_still_on_purpose():
    waiting = findings(OLD, wanted=2, rollout=RolloutTarget(revision="new", phase="Paused"))
    state = progressed(progressed(None, waiting, 0.0), waiting, 5000.0)
    assert overdue(state, waiting.seen, 5000.0) is False


def test_the_deadline_starts_again_with_each_step():
    loading, better = findings(replica("loading"), wanted=2), findings(READY, wanted=2)
    state = progressed(None, loading, 0.0)
    assert overdue(progressed(state, loading, 1799.0), loading.seen, 1799.0) is False
    assert overdue(progressed(state, loading, 1800.0), loading.seen, 1800.0) is True
    assert overdue(progressed(state, better, 1800.0), better.seen, 1800.0) is False


@pytest.mark.parametrize("phase", ["starting", "loading"])
def test_bytes_of_a_download_are_progress_until_it_begins_again(phase):
    """Also where shards are loaded while others come."""

    def fetching(done):
        return findings(replica(phase, reading=RuntimeState(phase=phase, downloaded_bytes=done, download_bytes=9)))

    state = progressed(None, fetching(0), 0.0)
    state = progressed(state, fetching(5), 1800.0)
    assert overdue(state, fetching(5).seen, 1800.0) is False
    state = progressed(progressed(state, fetching(0), 3000.0), fetching(4), 3600.0)
    assert overdue(state, fetching(4).seen, 3600.0) is True


def test_overdue_survives_the_operators_restart():
    stuck = again(findings(replica("loading"), overdue=True), replica("loading"))
    state = progressed(None, stuck, 0.0)
    assert overdue(progressed(state, stuck, 5.0), stuck.seen, 5.0) is True
    moved = again(findings(replica("loading"), overdue=True), READY, wanted=2)
    assert overdue(progressed(state, moved, 6.0), moved.seen, 6.0) is False
