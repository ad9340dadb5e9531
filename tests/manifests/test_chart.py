"""The Helm chart, rendered by the real Helm: what the kustomize base installs, and what each value changes."""

import json
import subprocess
import sys
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

ROOT = Path(__file__).parents[2]
BASE, CHART = ROOT / "manifests" / "base", ROOT / "manifests" / "chart"
HELM = Path(sys.executable).with_name("helm")


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HELM, *arguments], capture_output=True, text=True, check=False, timeout=60)


def rendered(*arguments: str, namespace: str = "kvasir-system", tests: bool = False) -> dict[tuple[str, str], Any]:
    switches = () if tests else ("--skip-tests",)
    done = helm("template", "kvasir", str(CHART), "--namespace", namespace, *switches, *arguments)
    assert done.returncode == 0, done.stderr
    found = [document for document in yaml.safe_load_all(done.stdout) if document]
    return {(document["kind"], document["metadata"]["name"]): document for document in found}


def based() -> dict[tuple[str, str], Any]:
    """The base without its Namespace, which Helm makes by --create-namespace, and with the chart's images."""
    files = [path for part in ("operator", "gateway", "policies") for path in sorted((BASE / part).glob("*.yaml"))]
    files += sorted((ROOT / "crds").glob("*.yaml"))
    found = [d for path in files if path.name != "kustomization.yaml" for d in yaml.safe_load_all(path.read_text())]
    return {(document["kind"], document["metadata"]["name"]): document for document in found}


def tagged(document: Any) -> Any:
    """Images as a chart of this version names them."""
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    text = json.dumps(document)
    for image in ("operator", "gateway"):
        text = text.replace(f'"image": "kvasir-{image}"', f'"image": "kvasir-{image}:{version}"')
    for image in ("runtime-cpu", "runtime"):
        text = text.replace(f'image={"kvasir-" + image}"', f'image=kvasir-{image}:{version}"')
        text = text.replace(f'cpu=kvasir-{image}"', f'cpu=kvasir-{image}:{version}"')
    return json.loads(text)


def test_the_chart_installs_what_the_base_installs() -> None:
    chart, base = rendered(), based()
    assert set(chart) == set(base)
    for name, document in base.items():
        made = chart[name]
        if name[0] == "CustomResourceDefinition":
            assert made["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
        assert made == tagged(document), name


def test_lint_finds_nothing() -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout


def container(found: dict[tuple[str, str], Any], name: str, number: int = 0) -> Any:
    return found["Deployment", name]["spec"]["template"]["spec"]["containers"][number]


def test_values_reach_their_places() -> None:
    found = rendered(
        "--set", "images.registry=registry.example/team/,images.tag=v9",
        "--set", "operator.replicas=1,gateway.replicas=5",
        "--set", "operator.allowModelDirs={/srv/a,/srv/b},operator.extraArgs={--verbose}",
        "--set", "gateway.picker.extraArgs={--reading-period=2},gateway.envoy.image=mirror/envoy:1",
        "--set", "operator.resources.limits.memory=1Gi,crds.install=false",
        namespace="home",
    )  # fmt: skip
    operator, envoy, picker = container(found, "kvasir-operator"), container(found, "kvasir-gateway"), None
    picker = container(found, "kvasir-gateway", 1)
    assert operator["image"] == "registry.example/team/kvasir-operator:v9"
    assert "--runtime-image=registry.example/team/kvasir-runtime:v9" in operator["args"]
    assert operator["args"][-3:] == ["--allow-model-dir=/srv/a", "--allow-model-dir=/srv/b", "--verbose"]
    assert "--gateway-url=http://kvasir-gateway.home" in operator["args"]
    assert operator["resources"]["limits"] == {"memory": "1Gi"}
    assert (envoy["image"], picker["args"][-1]) == ("mirror/envoy:1", "--reading-period=2")
    assert found["Deployment", "kvasir-operator"]["spec"]["replicas"] == 1
    assert found["Deployment", "kvasir-gateway"]["spec"]["replicas"] == 5
    assert not [name for name in found if name[0] == "CustomResourceDefinition"]
    assert {d["metadata"]["namespace"] for d in found.values() if "namespace" in d["metadata"]} == {"home"}
    assert all(s["namespace"] == "home" for d in found.values() for s in d.get("subjects", ()))


def test_nothing_names_another_namespace_than_that_of_the_release() -> None:
    """Advice of alerts is a command that its reader runs as it is."""
    switches = [part for value in ("monitoring", "networkPolicies") for part in ("--set", f"{value}.enabled=true")]
    found = rendered(*switches, namespace="home")
    assert [key for key, document in found.items() if "kvasir-system" in json.dumps(document)] == []
    assert "kubectl -n home get pods,lease" in json.dumps(found["PrometheusRule", "kvasir"])


def test_one_namespace_gets_rights_in_that_namespace_alone() -> None:
    found = rendered("--set", "watchNamespace=team", namespace="team")
    assert "--namespace=team" in container(found, "kvasir-operator")["args"]
    assert "--namespace=team" in container(found, "kvasir-gateway", 1)["args"]
    bound = {name for kind, name in found if kind == "ClusterRoleBinding"}
    assert bound == {"kvasir-operator-cluster-team"}
    rules = found["ClusterRole", "kvasir-operator-cluster-team"]["rules"]
    assert [(rule["resources"], rule["verbs"]) for rule in rules] == [
        (["acceleratorclasses"], ["list", "watch"]),
        (["nodes"], ["get", "list"]),
    ]
    narrow = [d for (kind, _), d in found.items() if kind == "RoleBinding" and d["roleRef"]["kind"] == "ClusterRole"]
    assert {d["metadata"]["namespace"] for d in narrow} == {"team"}
    roles = {d["roleRef"]["name"] for d in narrow}
    assert roles == {"kvasir-operator-team", "kvasir-gateway-team"}
    assert {("ClusterRole", name) for name in roles} <= set(found)


def test_releases_for_several_namespaces_share_nothing_that_both_would_own() -> None:
    """Helm refuses an object of another release, and the second one of a kustomization takes rights from the first."""

    def objects(namespace: str, *more: str) -> set[tuple[str, str, str]]:
        found = rendered("--set", f"watchNamespace={namespace}", *more, namespace=f"{namespace}-system")
        return {(kind, name, d["metadata"].get("namespace", "")) for (kind, name), d in found.items()}

    first, second = objects("one"), objects("two", "--set", "crds.install=false", "--set", "shared.install=false")
    assert first & second == set()
    assert {kind for kind, _, namespace in second if not namespace} == {"ClusterRole", "ClusterRoleBinding"}
    shared = {name for kind, name, _ in first if kind in ("ClusterRole", "ValidatingAdmissionPolicy")}
    assert {"kvasir-view", "kvasir-tenant-keys", "kvasir-namespace-limits"} <= shared


def component() -> dict[tuple[str, str], Any]:
    """What the component of the base for one namespace adds."""
    text = (CHART.parent / "components" / "namespaced" / "rights.yaml").read_text()
    return {(found["kind"], found["metadata"]["name"]): found for found in yaml.safe_load_all(text)}


def binding_of(found: dict[tuple[str, str], Any]) -> Any:
    """Of the gateway's role in the namespace that it serves."""
    return found.get(("RoleBinding", "kvasir-gateway-team")) or found["RoleBinding", "kvasir-gateway"]


@pytest.mark.parametrize(
    ("objects", "home"),
    [
        (partial(rendered, "--set", "watchNamespace=team", namespace="home"), "home"),
        (component, "kvasir-system"),
    ],
    ids=["chart", "component"],
)
def test_gateways_of_one_namespace_are_read_where_they_run(objects, home) -> None:
    """By the others and the operator: they are not in the namespace that these serve."""
    found = objects()
    role, binding = found["Role", "kvasir-gateway-pods"], found["RoleBinding", "kvasir-gateway-pods"]
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]
    assert role["metadata"]["namespace"] == binding["metadata"]["namespace"] == home
    assert binding["roleRef"] == {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "Role",
        "name": role["metadata"]["name"],
    }
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": name, "namespace": home} for name in ("kvasir-gateway", "kvasir-operator")
    ]
    assert binding_of(found)["metadata"]["namespace"] != home


PLACE = {
    "nodeSelector": {"pool": "system"},
    "tolerations": [{"key": "system", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "priorityClassName": "system-cluster-critical",
}


def test_pods_run_where_the_values_say(tmp_path: Path) -> None:
    values = {"images": {"pullSecrets": ["one", "two"]}, "operator": PLACE, "gateway": {**PLACE, "nodeSelector": {}}}
    (tmp_path / "values.json").write_text(json.dumps(values))
    found = rendered("--values", str(tmp_path / "values.json"), tests=True)
    pods = {name: found["Deployment", f"kvasir-{name}"]["spec"]["template"]["spec"] for name in ("operator", "gateway")}
    pods["test"] = found["Pod", "kvasir-test"]["spec"]
    for name, pod in pods.items():
        assert pod["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}]
        assert {key: pod[key] for key in PLACE if key != "nodeSelector"} == {
            k: PLACE[k] for k in PLACE if k != "nodeSelector"
        }
        assert pod.get("nodeSelector") == (PLACE["nodeSelector"] if name == "operator" else None)


def test_values_that_look_like_numbers_and_switches_stay_texts(tmp_path: Path) -> None:
    place = {"priorityClassName": "true", "nodeSelector": {"a": "on"}}
    values = {
        "images": {"pullSecrets": ["123", "null"]},
        "operator": {**place, "allowModelDirs": ["/srv/a: b", "/srv/a #b"]},
        "gateway": {**place, "envoy": {"image": "0123"}},
        "watchNamespace": "17",
    }
    (tmp_path / "values.json").write_text(json.dumps(values))
    found = rendered("--values", str(tmp_path / "values.json"), namespace="456", tests=True)
    for name in ("operator", "gateway"):
        pod = found["Deployment", f"kvasir-{name}"]["spec"]["template"]["spec"]
        assert pod["imagePullSecrets"] == [{"name": "123"}, {"name": "null"}]
        assert {key: pod[key] for key in place} == place
    assert container(found, "kvasir-operator")["args"][-2:] == [
        "--allow-model-dir=/srv/a: b",
        "--allow-model-dir=/srv/a #b",
    ]
    assert container(found, "kvasir-gateway")["image"] == "0123"
    assert {d["metadata"]["namespace"] for d in found.values() if "namespace" in d["metadata"]} == {"17", "456"}
    assert {s["namespace"] for d in found.values() for s in d.get("subjects", ())} == {"456"}


def test_the_gateways_service_is_of_the_type_that_is_asked_for(tmp_path: Path) -> None:
    wanted = {"type": "LoadBalancer", "annotations": {"a/b": "true"}, "loadBalancerSourceRanges": ["10.0.0.0/8"]}
    (tmp_path / "values.json").write_text(json.dumps({"gateway": {"service": wanted}}))
    service = rendered("--values", str(tmp_path / "values.json"))["Service", "kvasir-gateway"]
    assert service["metadata"]["annotations"] == {"a/b": "true"}
    assert service["spec"]["type"] == "LoadBalancer"
    assert service["spec"]["loadBalancerSourceRanges"] == ["10.0.0.0/8"]


def test_helms_test_asks_the_gateway_under_restricted_pod_security() -> None:
    pod = rendered("--set", "images.tag=v9", namespace="home", tests=True)["Pod", "kvasir-test"]
    assert pod["metadata"]["namespace"] == "home"
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    (asking,) = pod["spec"]["containers"]
    assert asking["image"] == "kvasir-gateway:v9"
    compile(asking["command"][-1], "the test's program", "exec")
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert pod["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert asking["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert asking["securityContext"]["allowPrivilegeEscalation"] is False


def asked(port: int) -> subprocess.CompletedProcess[str]:
    """The program of `helm test` with the gateway's Service on loopback."""
    (asking,) = rendered(tests=True)["Pod", "kvasir-test"]["spec"]["containers"]
    environment = {"KVASIR_GATEWAY_SERVICE_HOST": "127.0.0.1", "KVASIR_GATEWAY_SERVICE_PORT": str(port)}
    environment |= {one["name"]: one["value"] for one in asking["env"]}
    program = [sys.executable, *asking["command"][1:]]
    return subprocess.run(program, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_helms_test_fails_where_no_gateway_answers() -> None:
    done = asked(1)
    assert done.returncode != 0
    assert "Connection refused" in done.stderr


@pytest.mark.parametrize(("status", "passes"), [(200, True), (401, True), (503, False)])
def test_helms_test_passes_where_all_models_need_a_key(status: int, passes: bool) -> None:
    class Gateway(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/v1/models" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Gateway) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            done = asked(server.server_port)
        finally:
            server.shutdown()
            thread.join()
    assert (done.returncode == 0) is passes, done.stderr


def test_a_certificate_has_the_chart_do_what_the_component_does() -> None:
    found, plain = rendered("--set", "gateway.tls.secretName=own", namespace="home", tests=True), rendered()
    gateway = found["Deployment", "kvasir-gateway"]["spec"]["template"]["spec"]
    assert gateway["initContainers"][0]["args"][-1] == "--tls-dir=/run/kvasir-tls"
    assert {"name": "tls", "mountPath": "/run/kvasir-tls", "readOnly": True} in gateway["containers"][0]["volumeMounts"]
    assert {"name": "tls", "secret": {"secretName": "own"}} in gateway["volumes"]
    assert found["Service", "kvasir-gateway"]["spec"]["ports"] == [{"name": "https", "port": 443, "targetPort": "http"}]
    assert container(found, "kvasir-operator")["args"][-1] == "--gateway-url=https://kvasir-gateway.home"
    (asking,) = found["Pod", "kvasir-test"]["spec"]["containers"]
    assert asking["env"] == [{"name": "SCHEME", "value": "https"}]
    assert "kvasir-tls" not in json.dumps(list(plain.values()))


def test_monitors_rules_and_dashboards_have_the_labels_that_select_them(tmp_path: Path) -> None:
    """kube-prometheus-stack takes only those with the label of its release."""
    wanted = {"release": "stack", "team": "on"}
    (tmp_path / "values.json").write_text(json.dumps({"monitoring": {"enabled": True, "labels": wanted}}))
    labelled, plain = rendered("--values", str(tmp_path / "values.json")), rendered("--set", "monitoring.enabled=true")
    added = {key for key in labelled if labelled[key] != plain[key]}
    assert {kind for kind, _ in added} == {"PodMonitor", "PrometheusRule", "ConfigMap"}
    assert added == {key for key in plain if key not in rendered()}
    for key in added:
        assert labelled[key]["metadata"]["labels"] == {**plain[key]["metadata"]["labels"], **wanted}
        labelled[key]["metadata"]["labels"] = plain[key]["metadata"]["labels"]
        assert labelled[key] == plain[key]


AGGREGATED = {
    "kvasir-view": ("view", {"get", "list", "watch"}),
    "kvasir-classes": ("view", {"get", "list", "watch"}),
    "kvasir-edit": ("edit", {"create", "delete"}),
    "kvasir-admin": ("admin", {"create", "delete"}),
}


def test_roles_of_namespaces_have_their_part_of_our_kinds() -> None:
    roles = {d["metadata"]["name"]: d for d in yaml.safe_load_all((BASE / "policies" / "roles.yaml").read_text())}
    assert set(roles) == set(AGGREGATED)
    for name, (of_kubernetes, wanted) in AGGREGATED.items():
        assert roles[name]["metadata"]["labels"][f"rbac.authorization.k8s.io/aggregate-to-{of_kubernetes}"] == "true"
        assert {verb for rule in roles[name]["rules"] for verb in rule["verbs"]} >= wanted
    rules = [rule for role in roles.values() for rule in role["rules"] if "create" in rule["verbs"]]
    writable = {resource for rule in rules for resource in rule["resources"]}
    assert writable == {"inferenceservices", "modelroutes", "tenants"}, "classes are the administrator's"


def test_what_has_no_namespace_is_read_by_a_role_of_its_own() -> None:
    """The binding of a namespace gives nothing of it, so that its role must be one that can be bound alone."""
    crds = [yaml.safe_load(path.read_text()) for path in (ROOT / "crds").glob("*.yaml") if "kustom" not in path.name]
    global_ = {crd["spec"]["names"]["plural"] for crd in crds if crd["spec"]["scope"] == "Cluster"}
    roles = yaml.safe_load_all((BASE / "policies" / "roles.yaml").read_text())
    read = {d["metadata"]["name"]: {r for rule in d["rules"] for r in rule["resources"]} for d in roles}
    assert read.pop("kvasir-classes") == global_ == {"acceleratorclasses"}
    assert not global_ & set().union(*read.values())


def leaves(node: Any, path: str = "") -> dict[str, Any]:
    """Schema of every value that is set as one, by its path."""
    if "properties" not in node:
        return {path: node}
    assert node["additionalProperties"] is False, f"{path} takes anything"
    return {
        p: s
        for name, child in node["properties"].items()
        for p, s in leaves(child, f"{path}.{name}".strip(".")).items()
    }


SCHEMA = json.loads((CHART / "values.schema.json").read_text())
LEAVES = leaves(SCHEMA)
VALIDATOR = Draft7Validator(SCHEMA)


def test_every_value_has_its_schema_and_words() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    given = {path for path in LEAVES if _at(values, path) is not None}
    free = {path for path in LEAVES if ".affinity." in path}
    assert given == set(LEAVES) - {"global"} - free
    assert [path for path, schema in LEAVES.items() if len(schema.get("description", "")) < 20] == []
    assert list(VALIDATOR.iter_errors(values)) == []


@pytest.mark.parametrize("path", sorted(set(LEAVES) - {"global"}))
def test_no_value_takes_another_type(path: str) -> None:
    """Numbers for words, words for numbers, an object for a list, and a word for an object's amount."""
    wrong: dict[str, Any] = {"string": 7, "integer": "many", "boolean": "yes", "array": {"a": "b"}}
    inside = LEAVES[path].get("additionalProperties")
    of_object = 7 if inside is None else {"cpu": 7} if inside == {"type": "string"} else {"cpu": "a lot"}
    value: Any = wrong.get(LEAVES[path]["type"], of_object)
    for part in reversed(path.split(".")):
        value = {part: value}
    errors = list(VALIDATOR.iter_errors(value))
    assert [".".join(map(str, error.absolute_path)).startswith(path) for error in errors] == [True]


def _at(values: Any, path: str) -> Any:
    for part in path.split("."):
        values = values.get(part) if isinstance(values, dict) else None
    return values


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ("operator.resources.limits.memory=lots", "memory"),
        ("operator.replica=2", "operator"),
        ("operator.replicas=0", "operator.replicas"),
        ("images.registry=registry.example", "images.registry"),
        ("operator.allowModelDirs={models}", "operator.allowModelDirs"),
        ("gateway.service.type=Loadbalancer", "gateway.service.type"),
        ("gateway.affinity.nodes=x", "gateway.affinity"),
        ("unknown=1", "unknown"),
    ],
)
def test_a_bad_value_is_refused_with_its_place(value: str, place: str) -> None:
    done = helm("template", "kvasir", str(CHART), "--set", value)
    assert done.returncode != 0
    assert place.rsplit(".", maxsplit=1)[-1] in done.stderr
