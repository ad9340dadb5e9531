"""Environment, downward API, quantities: what a container is told."""

import base64

import pytest

from kvasir_api import quantity
from kvasir_local.node.rules import container_config, downward_api, environment
from kvasir_local.node.rules.environment import NamespaceConfig
from kvasir_local.node.rules.images import Image
from kvasir_local.node.rules.kinds import ConfigError

PLACE = downward_api.PodPlacement(
    pod_ip="127.20.0.7", host_ip="127.0.0.1", node_name="n0", allocatable={"cpu": "8", "memory": "4Gi"}
)
POD = {
    "metadata": {
        "name": "web-1",
        "namespace": "shop",
        "uid": "u1",
        "labels": {"app": "web"},
        "annotations": {"a/b": 'q"'},
    },
    "spec": {
        "serviceAccountName": "robot",
        "containers": [
            {"name": "c", "image": "i", "resources": {"limits": {"memory": "64Mi"}, "requests": {"cpu": "250m"}}}
        ],
    },
}
SOURCES = NamespaceConfig(
    {"conf": {"data": {"color": "blue"}, "binaryData": {"raw": base64.b64encode(b"\x01").decode()}}},
    {"pass": {"data": {"key": base64.b64encode(b"s3cret").decode()}}},
)


def built(*env: dict, env_from: tuple[dict, ...] = (), **base: str) -> dict[str, str]:
    container = {**POD["spec"]["containers"][0], "env": list(env), "envFrom": list(env_from)}
    return environment.environment(
        POD, container, placement=PLACE, sources=SOURCES, base=base, injected={"API": "here"}
    )


@pytest.mark.parametrize(
    ("path", "want"),
    [
        ("metadata.name", "web-1"),
        ("metadata.namespace", "shop"),
        ("metadata.uid", "u1"),
        ("metadata.labels['app']", "web"),
        ("metadata.labels['none']", ""),
        ("metadata.annotations", 'a/b="q\\""'),
        ("spec.nodeName", "n0"),
        ("spec.serviceAccountName", "robot"),
        ("status.podIP", "127.20.0.7"),
        ("status.hostIP", "127.0.0.1"),
    ],
)
def test_a_pod_can_read_itself(path: str, want: str):
    assert downward_api.field(POD, PLACE, path) == want


def test_an_unknown_field_path_is_an_error():
    with pytest.raises(ConfigError, match=r"status\.phase"):
        downward_api.field(POD, PLACE, "status.phase")


@pytest.mark.parametrize(
    ("ref", "want"),
    [
        ({"resource": "limits.memory"}, "67108864"),
        ({"resource": "limits.memory", "divisor": "1Mi"}, "64"),
        ({"resource": "limits.cpu"}, "8"),
        ({"resource": "requests.cpu"}, "1"),
        ({"resource": "requests.cpu", "divisor": "1m"}, "250"),
    ],
)
def test_resources_are_counted_in_divisors_rounded_up(ref: dict, want: str):
    assert downward_api.resource(POD, PLACE, ref, "c") == want


@pytest.mark.parametrize(("text", "want"), [("1Gi", 2**30), ("2e3", 2000), ("500m", 0.5), ("1E", 10**18), ("7", 7)])
def test_quantities_are_read(text: str, want: float):
    assert quantity.parse(text) == want


@pytest.mark.parametrize("text", ["", "Mi", "1Zi", "one"])
def test_what_is_no_quantity_is_an_error(text: str):
    with pytest.raises(ValueError, match="not a quantity"):
        quantity.parse(text)


def test_references_resolve():
    found = built(
        {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "conf", "key": "color"}}},
        {"name": "B", "valueFrom": {"secretKeyRef": {"name": "pass", "key": "key"}}},
        {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "D", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
    )
    assert found == {"API": "here", "A": "blue", "B": "s3cret", "C": "127.20.0.7", "D": "64"}


def test_a_program_that_would_listen_everywhere_listens_on_the_pods_address():
    """Pods share the machine's network."""
    assert built({"name": "KVASIR_LISTEN_ADDRESS", "value": "::"})["KVASIR_LISTEN_ADDRESS"] == "127.20.0.7"
    assert "KVASIR_LISTEN_ADDRESS" not in built()


def test_env_wins_over_env_from_wins_over_the_image():
    found = built(
        {"name": "p_color", "value": "red"},
        env_from=({"prefix": "p_", "configMapRef": {"name": "conf"}},),
        p_raw="base",
    )
    assert found == {"API": "here", "p_color": "red", "p_raw": "\x01"}


def test_variables_expand_from_earlier_ones_only():
    found = built(
        {"name": "A", "value": "1"}, {"name": "B", "value": "$(A)-$(C)-$$(A)-$(API)"}, {"name": "C", "value": "3"}
    )
    assert found["B"] == "1-$(C)-$(A)-here"


@pytest.mark.parametrize(
    ("env", "match"),
    [
        ({"configMapKeyRef": {"name": "none", "key": "x"}}, 'configmap "none" not found'),
        ({"secretKeyRef": {"name": "pass", "key": "x"}}, "couldn't find key x in Secret shop/pass"),
    ],
)
def test_a_missing_reference_is_named(env: dict, match: str):
    with pytest.raises(ConfigError, match=match):
        built({"name": "A", "valueFrom": env})


def test_a_missing_optional_reference_leaves_the_variable_out():
    assert built({"name": "A", "valueFrom": {"secretKeyRef": {"name": "no", "key": "x", "optional": True}}}) == {
        "API": "here"
    }


def test_command_and_args_are_expanded_and_replace_the_image():
    container = {"name": "c", "image": "i", "command": ["run", "--host=$(IP)"], "args": ["$(NONE)", "$$(IP)"]}
    launch = container_config.config_of(POD, container, Image(entrypoint=("entry",)), {"IP": "1.2.3.4"})
    assert launch.argv == ("run", "--host=1.2.3.4", "$(NONE)", "$(IP)")
    assert launch.hostname == "web-1"


def test_an_image_without_entry_point_needs_a_command():
    with pytest.raises(ConfigError, match="state a command"):
        container_config.config_of(POD, {"name": "c", "image": "kvasir-local/process"}, Image(entrypoint=()), {})


@pytest.mark.parametrize(
    ("wish", "kept"), [({"drop": ["ALL"]}, ()), ({"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}, (10,))]
)
def test_capabilities_are_dropped(wish: dict, kept: tuple[int, ...]):
    assert container_config.capabilities(wish) == kept
    assert 0 not in container_config.capabilities({"drop": ["CHOWN"]})
