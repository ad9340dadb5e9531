"""The manifests of the gateway say what the code says: names, ports, paths, flags; and what a careful cluster asks."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from kvasir_api import names
from kvasir_gateway.__main__ import gateway
from kvasir_gateway.envoy import bootstrap
from kvasir_gateway.options import DIRECTORY
from kvasir_gateway.picker.drain_server import DRAIN_LOCK

MANIFESTS = Path(__file__).parents[2] / "manifests" / "base" / "gateway"
OBJECTS = {found["kind"]: found for path in MANIFESTS.glob("*.yaml") for found in yaml.safe_load_all(path.read_text())}
POD = OBJECTS["Deployment"]["spec"]["template"]["spec"]
CONTAINERS = {container["name"]: container for container in POD["initContainers"] + POD["containers"]}


def test_names_are_those_of_the_contract():
    for kind in ("Deployment", "Service", "ServiceAccount"):
        metadata = OBJECTS[kind]["metadata"]
        assert (metadata["name"], metadata["namespace"]) == (names.GATEWAY, names.SYSTEM_NAMESPACE)
        assert metadata["labels"] == {names.LABEL_NAME: names.GATEWAY, names.LABEL_PART_OF: names.PART_OF}
    assert POD["serviceAccountName"] == names.GATEWAY
    rules = OBJECTS["ClusterRole"]["rules"]
    assert [rule["apiGroups"] + rule["resources"] for rule in rules] == [
        [names.GROUP, names.PLURAL],
        ["", "pods"],
        ["apps", "deployments", "replicasets"],
    ]
    assert {verb for rule in rules for verb in rule["verbs"]} == {"list", "watch"}


def test_ports_and_paths_are_those_of_the_contract():
    envoy, picker = CONTAINERS["envoy"], CONTAINERS["picker"]
    assert envoy["ports"] == [{"name": names.PORT_HTTP_NAME, "containerPort": names.PORT_GATEWAY}]
    assert picker["ports"] == [{"name": "state", "containerPort": names.PORT_GATEWAY_STATE}]
    assert picker["readinessProbe"]["httpGet"]["path"] == names.PATH_READYZ
    assert picker["livenessProbe"]["httpGet"]["path"] == names.PATH_LIVEZ
    hooks = [container["lifecycle"]["preStop"]["exec"]["command"] for container in (envoy, picker)]
    assert hooks[0] == ["flock", "--shared", f"{DIRECTORY}/{DRAIN_LOCK}", "true"]
    assert hooks[1] == ["kvasir", "gateway", "drain", f"--config-dir={DIRECTORY}"]
    annotations = OBJECTS["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(names.PORT_GATEWAY_STATE)


def test_all_containers_share_the_directory():
    for container in CONTAINERS.values():
        assert container["volumeMounts"] == [{"name": "shared", "mountPath": DIRECTORY}]
    assert f"{DIRECTORY}/{bootstrap.BOOTSTRAP}" in CONTAINERS["envoy"]["args"]


@pytest.mark.parametrize("name", ["bootstrap", "picker"])
def test_arguments_are_understood(name):
    arguments = [word.replace("$(ADDRESS)", "127.0.0.1") for word in CONTAINERS[name]["args"]]
    result = CliRunner().invoke(gateway, [*arguments, "--help"])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("container", CONTAINERS.values(), ids=CONTAINERS.keys())
def test_containers_pass_the_restricted_level(container):
    context = container["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)
    assert (POD["securityContext"]["runAsNonRoot"], POD["securityContext"]["seccompProfile"]["type"]) == (
        True,
        "RuntimeDefault",
    )
    assert container["resources"]["limits"]["memory"]
