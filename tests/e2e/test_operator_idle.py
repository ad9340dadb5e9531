"""An operator with nothing to do writes nothing, whatever it reads; ten minutes of that by `make test-idle`.

With the other tests it is a few seconds, in which everything is listed again and again; what would be written every few
minutes shows then as well, but for what goes by the length of a lease.
"""

import asyncio
import contextlib
import os
import sys
from collections import Counter

import pytest

from fakes.operator_rig import USER
from kvasir_api import names
from kvasir_kube.kinds import LEASE
from kvasir_local import audit
from kvasir_operator.status.compose import COUNTERS_S

IDLE_S = float(os.environ.get("KVASIR_IDLE_S", "4"))
LONG = "KVASIR_IDLE_S" in os.environ
LISTS = "60" if LONG else "0.5"
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(IDLE_S + 120)]


async def test_nothing_is_written_while_nothing_happens(still, record_property):
    """Services of every sort: steady, scaled by load, of an old revision, without a replica, and one that cannot be."""
    rig = still
    rig.start("--allow-model-dir=/srv", f"--resync={LISTS}", f"--lease-namespace={names.SYSTEM_NAMESPACE}")
    await rig.apply("steady", replicas=2)
    # That a whole window has been watched, of five minutes, is no news where none may leave.
    await rig.apply("elastic", autoscaling={"minReplicas": 2, "maxReplicas": 3})
    await rig.apply("edited", replicas=1)
    await rig.apply("asleep", replicas=0)
    await rig.apply("refused", model={"uri": "file:///etc/x"})
    await rig.apply("endless", resources={"cpu": "10000"})
    for name in ("steady", "elastic", "edited"):
        await rig.until_condition("Ready", name=name, reason="AllReplicasReady")
    await rig.apply("edited", replicas=1, runtime={"blockSize": 32})
    await rig.until_condition("Ready", name="edited", reason="AllReplicasReady")
    await rig.until_condition("Ready", name="asleep", reason="ScaledToZero")
    await rig.until_condition("Stalled", name="refused")
    await rig.until_condition("Ready", "False", name="endless", reason="Unschedulable")
    await rig.until_pods(5)
    await rig.until(lambda: quiet(rig), lambda: "a while without a write", s=60)
    mark = rig.audit_mark()
    await passed(IDLE_S)
    await rig.until(lambda: listed(rig, mark), lambda: "a list, without which it would have had no chance to write")
    assert rig.running
    found = requests(rig, mark)
    told = Counter((r.verb, r.resource) for r in found)
    record_property("requests", dict(told))
    if LONG:
        sys.stderr.write(f"\nof the operator in {IDLE_S:g} s: {dict(told)}\n")
    written = [r for r in audit.writes(found) if r.namespace == rig.namespace]
    assert written == []
    assert {r.resource for r in audit.writes(found)} <= {LEASE.plural}


def requests(rig, mark):
    """Of the operator since a mark."""
    return [r for r in audit.read(rig.control.paths.audit_log, since=mark)[0] if r.user == USER]


async def listed(rig, mark):
    return any((r.verb, r.resource) == ("list", "pods") for r in requests(rig, mark))


async def quiet(rig):
    """Longer than counters of a status wait to be written."""
    mark = rig.audit_mark()
    await passed(COUNTERS_S + 1.0)
    return not rig.writes_since(mark)


async def passed(seconds):
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.Event().wait()
