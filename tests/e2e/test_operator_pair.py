"""Two operators on a real control plane: one acts, the other follows it when it dies, stands still or leaves."""

import asyncio
import signal

import pytest

from fakes.operator_rig import Rig, kubectl
from kvasir_api import names
from kvasir_kube.kinds import LEASE
from kvasir_operator.status.compose import COUNTERS_S

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]
FLAGS = (f"--lease-namespace={names.SYSTEM_NAMESPACE}", "--allow-model-dir=/srv")


@pytest.fixture
async def pair(rig, tmp_path):
    """The rig's operator with a Lease, and a second one that waits for it."""
    rig.stop()
    second_log = tmp_path / "second"
    second_log.mkdir()
    second = Rig(rig.control, rig.client, rig.kubelet, namespace=rig.namespace, tmp=second_log)
    rig.start(*FLAGS)
    await rig.until(lambda: leads(rig), rig.tail)
    second.start(*FLAGS)
    await second.until(lambda: stands_by(second), second.tail)
    yield rig, second
    second.stop()


async def leads(rig):
    return "leading as" in rig.tail()


async def stands_by(rig):
    return "standing by as" in rig.tail()


async def ended(rig):
    return not rig.running


async def test_a_leader_that_stood_still_is_followed_and_writes_nothing_more(pair):
    first, second = pair
    await first.apply(replicas=1)
    await first.until_condition("Ready")
    assert second.running
    first.signal(signal.SIGSTOP)
    kubectl(first.control, "scale", "infsvc/tiny", "--replicas=2", f"--namespace={first.namespace}")
    await second.until(lambda: leads(second), second.tail)
    assert len(await second.until_pods(2)) == 2
    await second.until_condition("Ready")
    await quiet(second)
    mark = second.audit_mark()
    first.signal(signal.SIGCONT)
    await first.until(lambda: ended(first), first.tail)
    assert first.stop() == 1
    assert "does not lead any more" in first.log.read_text()
    assert second.writes_since(mark) == []
    assert len(await second.until_pods(2)) == 2
    holder = (await second.client.get(LEASE, names.SYSTEM_NAMESPACE, f"{names.OPERATOR}-{first.namespace}"))["spec"]
    assert holder["leaseTransitions"] == 1


async def test_a_leader_that_leaves_is_followed_at_once(pair):
    first, second = pair
    await first.apply(replicas=1)
    await first.until_condition("Ready")
    uids = await first.pod_uids()
    assert first.stop() == 0
    await second.until(lambda: leads(second), second.tail)
    assert "it was given back" in second.log.read_text()
    kubectl(second.control, "scale", "infsvc/tiny", "--replicas=2", f"--namespace={second.namespace}")
    await second.until_pods(2)
    assert uids < await second.pod_uids()


def test_the_rights_reach_the_lease_and_no_other_namespace(control):
    can = ["auth", "can-i", "--as", f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:{names.OPERATOR}"]
    for namespace, wanted in ((names.SYSTEM_NAMESPACE, "yes"), ("default", "no")):
        asked = [*can, "create", "leases.coordination.k8s.io", f"--namespace={namespace}"]
        assert kubectl(control, *asked, check=False).strip() == wanted


async def quiet(rig):
    """Until nothing was written for longer than the operator keeps back what it has to write."""

    async def still():
        mark = rig.audit_mark()
        for _ in range(round((COUNTERS_S + 1) / 0.04)):
            await asyncio.sleep(0.04)
        return not rig.writes_since(mark)

    await rig.until(still, lambda: "no time without a write")
