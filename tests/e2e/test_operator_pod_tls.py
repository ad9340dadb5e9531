"""TLS of pods by one option, with the operator's own rights: readings, drains, and back."""

import pytest

from fakes.operator_rig import USER, kubectl
from kvasir_api import names
from kvasir_kube.kinds import SECRET

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]
FLAGS = (f"--lease-namespace={names.SYSTEM_NAMESPACE}", "--allow-model-dir=/srv")


async def test_pods_speak_tls_by_one_option_and_are_replaced_when_it_is_taken_back(still):
    rig = still
    rig.start(*FLAGS, "--pod-tls")
    service = await rig.apply(replicas=1)
    await rig.until_condition("Ready")
    (secure,) = rig.kubelet.of()
    assert secure.tls is not None

    async def is_read():
        return secure.state_reads > 1

    await rig.until(is_read, rig.tail)
    secret = await rig.client.get(SECRET, rig.namespace, names.POD_TLS_SECRET)
    assert [owner["uid"] for owner in secret["metadata"]["ownerReferences"]] == [service["metadata"]["uid"]]
    rig.stop()
    rig.start(*FLAGS)

    async def is_plain():
        return [stub.tls for stub in rig.kubelet.of()] == [None]

    await rig.until(is_plain, rig.tail)
    await rig.until_condition("Ready")
    assert secure.drains[:1] == ["POST"], "it was asked to drain by TLS"
    assert rig.kubelet.cut_off == []


def test_of_the_secrets_of_a_namespace_the_operator_reaches_that_one(control):
    def can(verb: str, what: str) -> str:
        return kubectl(control, "auth", "can-i", verb, what, "-ndefault", f"--as={USER}", check=False).split()[-1]

    own, other = f"secrets/{names.POD_TLS_SECRET}", "secrets/other"
    assert {verb: can(verb, own) for verb in ("get", "create", "patch")} == dict.fromkeys(
        ("get", "create", "patch"), "yes"
    )
    assert {
        can(verb, what) for verb in ("get", "create", "patch", "list", "delete") for what in (other, "secrets")
    } == {"no"}
