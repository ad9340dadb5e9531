"""The allow-list of pod fields: what runs, what is accepted, what is refused by name."""

from pathlib import Path

import pytest

from kvasir_local.node.rules import field_support
from kvasir_local.node.rules.supported_fields import POD, relaxed

CONTAINER = {"name": "c", "image": "kvasir-runtime"}


def refused(**spec: object) -> str | None:
    return field_support.refusal(field_support.findings({"containers": [CONTAINER], **spec}, POD))


def refused_in_container(**extra: object) -> str | None:
    return field_support.refusal(field_support.findings({"containers": [{**CONTAINER, **extra}]}, POD))


def test_a_defaulted_pod_is_accepted():
    assert (
        refused(restartPolicy="Always", dnsPolicy="ClusterFirst", securityContext={}, schedulerName="default") is None
    )


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"hostPID": True}, "spec.hostPID"),
        ({"os": {"name": "windows"}}, "spec.os.name"),
        ({"ephemeralContainers": [{"name": "debug"}]}, "spec.ephemeralContainers"),
        ({"shareProcessNamespace": True}, "spec.shareProcessNamespace"),
        ({"hostAliases": [{"ip": "127.0.0.1"}]}, "spec.hostAliases"),
        ({"readinessGates": [{"conditionType": "x"}]}, "spec.readinessGates"),
        ({"runtimeClassName": "gvisor"}, "spec.runtimeClassName"),
        ({"fieldOfTheFuture": {"deep": 1}}, "spec.fieldOfTheFuture"),
        ({"volumes": [{"name": "v", "nfs": {"server": "x"}}]}, "spec.volumes[0].nfs"),
        ({"volumes": [{"name": "v", "image": {"reference": "host/model:v1"}}]}, "spec.volumes[0].image"),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/x", "type": "Socket"}}]}, "spec.volumes[0].hostPath.type"),
        ({"initContainers": [{**CONTAINER, "restartPolicy": "Always"}]}, "spec.initContainers[0].restartPolicy"),
        ({"securityContext": {"sysctls": [{"name": "a"}]}}, "spec.securityContext.sysctls"),
    ],
)
def test_an_unknown_pod_field_is_refused_with_its_path(spec: dict[str, object], path: str):
    assert path in (refused(**spec) or "")


@pytest.mark.parametrize(
    ("extra", "path"),
    [
        ({"securityContext": {"privileged": True}}, "securityContext.privileged"),
        ({"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}, "securityContext.capabilities.add[0]"),
        ({"lifecycle": {"postStart": {"exec": {"command": ["x"]}}}}, "lifecycle.postStart"),
        ({"tty": True}, "tty"),
        ({"livenessProbe": {"grpc": {"port": 1}}}, "livenessProbe.grpc"),
        (
            {"volumeMounts": [{"name": "v", "mountPath": "/x", "mountPropagation": "Bidirectional"}]},
            "volumeMounts[0].mountPropagation",
        ),
        ({"volumeMounts": [{"name": "v", "mountPath": "/x", "subPathExpr": "$(A)"}]}, "volumeMounts[0].subPathExpr"),
        ({"ports": [{"containerPort": 1, "protocol": "SCTP"}]}, "ports[0].protocol"),
    ],
)
def test_an_unknown_container_field_is_refused_with_its_path(extra: dict[str, object], path: str):
    assert f"spec.containers[0].{path}: " in (refused_in_container(**extra) or "")


def test_empty_values_of_unknown_fields_change_nothing():
    assert refused(hostPID=False, hostAliases=[], overhead={}, hostIPC=None) is None


def test_relaxed_fields_run_and_say_why():
    found = field_support.findings({"containers": [{**CONTAINER, "securityContext": {"runAsUser": 1000}}]}, POD)
    assert [(item.path, item.refused) for item in found] == [("spec.containers[0].securityContext.runAsUser", False)]
    assert "user of the node process" in found[0].why


def test_the_relaxed_list_names_paths_for_people():
    paths = [path for path, _ in relaxed()]
    assert "spec.containers[].resources.limits" in paths
    assert "spec.volumes[].emptyDir.medium" in paths


def test_the_relaxed_list_is_documented():
    page = (Path(__file__).parents[4] / "docs" / "process-node.md").read_text()
    missing = {why for _, why in relaxed() if why not in page}
    assert not missing, "docs/process-node.md does not say: " + "; ".join(sorted(missing))
