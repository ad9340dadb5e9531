"""Changes of a service on real nodes while it streams: no stream breaks, whatever the new revision is like."""

import pytest

from outside.real_nodes.service import StreamLoad

pytestmark = pytest.mark.timeout(900)

RUNTIME = {"kvCacheTokens": 4096}
TOO_LITTLE = {"cpu": "300m", "memory": "128Mi"}


def replaced(service, before):
    found = service.uids()
    return len(found) == len(before) and not found & before


def test_a_new_revision_and_its_rollback_break_no_stream(fresh):
    fresh.apply(replicas=2)
    fresh.until_ready()
    first = fresh.uids()
    with StreamLoad(fresh) as load:
        load.until_more()
        fresh.apply(replicas=2, runtime=RUNTIME)
        fresh.until(lambda: replaced(fresh, first), "every replica is of the new revision")
        fresh.until_ready()
        second = fresh.uids()
        load.until_more()
        fresh.apply(replicas=2)
        fresh.until(lambda: replaced(fresh, second), "every replica is of the old revision again")
        fresh.until_ready()
        load.until_more()
    assert set(load.ends) == {"length"}


def test_a_revision_that_the_kernel_kills_breaks_no_stream_and_is_taken_back(fresh):
    fresh.apply(replicas=2)
    fresh.until_ready()
    first = fresh.uids()
    with StreamLoad(fresh) as load:
        load.until_more()
        fresh.apply(replicas=2, resources=TOO_LITTLE)
        fresh.until(lambda: fresh.conditions().get("Stalled", {}).get("reason") == "OutOfMemory", "it is named")
        load.until_more()
        fresh.apply(replicas=2)
        fresh.until_ready()
        load.until_more()
    assert set(load.ends) == {"length"}
    assert fresh.uids() & first, "a replica that served was given up for a revision that never did"
