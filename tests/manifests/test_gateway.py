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
        [names.GROUP, names.PLURAL, names.ROUTE_PLURAL],
        ["", "pods"],
        ["apps", "deployments", "replicasets"],
    ]
    assert {verb for rule in rules for verb in rule["verbs"]} == {"list", "watch"}


def test_the_gateway_reads_one_secret_by_its_name():
    role = OBJECTS["Role"]
    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [names.GATEWAY_KEYS_SECRET], "verbs": ["get"]}
    ]
    secret, binding = OBJECTS["Secret"]["metadata"], OBJECTS["RoleBinding"]
    assert (secret["namespace"], secret["name"]) == (names.SYSTEM_NAMESPACE, names.GATEWAY_KEYS_SECRET)
    assert not {"data", "stringData", "immutable"} & OBJECTS["Secret"].keys()
    assert (binding["roleRef"]["name"], binding["subjects"][0]["name"]) == (role["metadata"]["name"], names.GATEWAY)


def test_ports_and_paths_are_those_of_the_contract():
    envoy, picker, relay = (CONTAINERS[name] for name in ("envoy", "picker", "relay"))
    assert envoy["ports"] == [{"name": names.PORT_HTTP_NAME, "containerPort": names.PORT_GATEWAY}]
    assert picker["ports"] == [{"name": "state", "containerPort": names.PORT_GATEWAY_STATE}]
    assert picker["readinessProbe"]["httpGet"]["path"] == names.PATH_READYZ
    assert picker["livenessProbe"]["httpGet"]["path"] == names.PATH_LIVEZ
    hooks = [container["lifecycle"]["preStop"]["exec"]["command"] for container in (envoy, picker, relay)]
    assert hooks[0] == hooks[2] == ["flock", "--shared", f"{DIRECTORY}/{DRAIN_LOCK}", "true"]
    assert hooks[1] == ["kvasir", "gateway", "drain", f"--config-dir={DIRECTORY}"]
    annotations = OBJECTS["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(names.PORT_GATEWAY_STATE)


def test_all_containers_share_the_directory():
    for container in CONTAINERS.values():
        assert container["volumeMounts"][0] == {"name": "shared", "mountPath": DIRECTORY}
    assert f"{DIRECTORY}/{bootstrap.BOOTSTRAP}" in CONTAINERS["envoy"]["args"]


@pytest.mark.parametrize("name", ["bootstrap", "picker", "relay"])
def test_arguments_are_understood(name):
    arguments = [word.replace("$(KVASIR_LISTEN_ADDRESS)", "127.0.0.1") for word in CONTAINERS[name]["args"]]
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


def test_external_backends_are_the_administrators_and_the_relays_alone():
    (volume,) = (one for one in POD["volumes"] if "secret" in one)
    assert volume["secret"] == {"secretName": "kvasir-gateway-backends", "optional": True}
    mounts = [(name, m) for name, c in CONTAINERS.items() for m in c["volumeMounts"] if m["name"] == volume["name"]]
    ((name, mount),) = mounts
    assert (name, mount["readOnly"]) == ("relay", True)
    context = gateway.commands["relay"].make_context("relay", CONTAINERS["relay"]["args"][1:])
    assert context.params["backends_dir"] == mount["mountPath"]


def test_https_is_one_component():
    path = MANIFESTS.parents[1] / "components" / "gateway-tls" / "kustomization.yaml"
    patches = {
        (found["target"]["kind"], found["target"]["name"]): yaml.safe_load(found["patch"])
        for found in yaml.safe_load(path.read_text())["patches"]
    }
    argument, mount, volume = (step["value"] for step in patches["Deployment", names.GATEWAY])
    assert "initContainers/0" in patches["Deployment", names.GATEWAY][0]["path"]
    assert POD["initContainers"][0]["args"][0] == "bootstrap"
    assert POD["containers"][0]["name"] == "envoy"
    assert argument == f"--tls-dir={mount['mountPath']}"
    assert (mount["name"], mount["readOnly"]) == (volume["name"], True)
    given = [*POD["initContainers"][0]["args"][1:], argument]
    context = gateway.commands["bootstrap"].make_context("bootstrap", given)
    assert context.params["tls_dir"] == mount["mountPath"]
    (port,) = (step["value"] for step in patches["Service", names.GATEWAY])
    assert (port["port"], port["targetPort"]) == (443, names.PORT_HTTP_NAME)
