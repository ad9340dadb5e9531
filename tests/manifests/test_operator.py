"""The manifests use the names of the contract, grant what is used, and pass options that exist."""

import re
from pathlib import Path

import pytest
import yaml

from fakes.random_specs import FIELDS
from kvasir_api import crd, names
from kvasir_api.accelerator import AcceleratorClass
from kvasir_api.model_route import ModelRoute
from kvasir_api.service import InferenceService
from kvasir_api.tenant import Tenant
from kvasir_kube import kinds
from kvasir_operator.__main__ import operator
from kvasir_operator.desired.template import pod_labels
from kvasir_operator.loop.resync import WATCHED

MANIFESTS = Path(__file__).parents[2] / "manifests"
OPERATOR = MANIFESTS / "base" / "operator"


def documents(path):
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def one(path, kind):
    (found,) = [document for document in documents(path) if document["kind"] == kind]
    return found


def granted():
    """(group, resource, verb) of every rule for objects of any name."""
    return {
        (group, resource, verb)
        for rule in one(OPERATOR / "rbac.yaml", "ClusterRole")["rules"]
        if "resourceNames" not in rule
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_names_are_those_of_the_contract():
    deployment = one(OPERATOR / "deployment.yaml", "Deployment")
    account = one(OPERATOR / "serviceaccount.yaml", "ServiceAccount")
    binding = one(OPERATOR / "rbac.yaml", "ClusterRoleBinding")
    namespace = one(MANIFESTS / "base" / "namespace.yaml", "Namespace")
    assert namespace["metadata"]["name"] == names.SYSTEM_NAMESPACE
    for found in (deployment, account):
        assert (found["metadata"]["name"], found["metadata"]["namespace"]) == (names.OPERATOR, names.SYSTEM_NAMESPACE)
        assert found["metadata"]["labels"] == {names.LABEL_NAME: names.OPERATOR, names.LABEL_PART_OF: names.PART_OF}
    assert binding["subjects"][0] == {
        "kind": "ServiceAccount",
        "name": names.OPERATOR,
        "namespace": names.SYSTEM_NAMESPACE,
    }
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == names.IMAGE_OPERATOR


def test_two_operators_of_which_the_holder_of_the_lease_acts():
    spec = one(OPERATOR / "deployment.yaml", "Deployment")["spec"]
    assert spec["replicas"] == 2
    assert "--lease-namespace=$(POD_NAMESPACE)" in spec["template"]["spec"]["containers"][0]["args"]
    lease, secret = one(OPERATOR / "rbac.yaml", "Role")["rules"]
    assert lease == {
        "apiGroups": [kinds.LEASE.group],
        "resources": [kinds.LEASE.plural],
        "verbs": ["get", "create", "patch"],
    }
    assert secret == {
        "apiGroups": [kinds.SECRET.group],
        "resources": [kinds.SECRET.plural],
        "resourceNames": [names.SIGNING_SECRET, names.GATEWAY_KEYS_SECRET],
        "verbs": ["get", "patch"],
    }


def test_the_secret_of_the_signing_keys_comes_empty():
    secret = one(OPERATOR / "secret.yaml", "Secret")
    assert secret["metadata"]["name"] == names.SIGNING_SECRET
    assert not {"data", "stringData", "immutable"} & secret.keys()
    assert "secret.yaml" in yaml.safe_load((OPERATOR / "kustomization.yaml").read_text())["resources"]


@pytest.mark.parametrize("part", ["operator", "gateway"])
def test_a_node_that_is_emptied_takes_one_of_each_at_a_time(part):
    where = MANIFESTS / "base" / part
    budget = one(where / "disruption.yaml", "PodDisruptionBudget")["spec"]
    selector = one(where / "deployment.yaml", "Deployment")["spec"]["selector"]
    assert (budget["maxUnavailable"], budget["selector"]) == (1, selector)
    assert "disruption.yaml" in yaml.safe_load((where / "kustomization.yaml").read_text())["resources"]


def test_rights_are_exactly_those_that_are_used():
    watched = {(kind.group, kind.plural, verb) for kind, _ in WATCHED for verb in ("list", "watch")}
    written = {
        (names.GROUP, f"{names.PLURAL}/status", "patch"),
        (names.GROUP, names.ROUTE_PLURAL, "list"),
        (names.GROUP, names.ROUTE_PLURAL, "watch"),
        (names.GROUP, f"{names.ROUTE_PLURAL}/status", "patch"),
        (names.GROUP, names.TENANT_PLURAL, "list"),
        (names.GROUP, f"{names.TENANT_PLURAL}/status", "patch"),
        ("events.k8s.io", "events", "create"),
        ("", "persistentvolumeclaims", "get"),
        ("", "nodes", "get"),
        ("", "nodes", "list"),
        ("", "pods", "create"),
        ("", "pods", "patch"),
        ("", "pods", "delete"),
        *(
            (kind.group, kind.plural, verb)
            for kind in (kinds.SERVICE, kinds.DISRUPTION_BUDGET, kinds.NETWORK_POLICY)
            for verb in ("get", "create", "patch")
        ),
        *(
            ("apps", plural, verb)
            for plural in (kinds.DEPLOYMENT.plural, kinds.CONTROLLER_REVISION.plural)
            for verb in ("get", "create", "patch", "delete")
        ),
        *(("apps", kinds.STATEFUL_SET.plural, verb) for verb in ("get", "create", "delete")),
    }
    assert granted() == watched | written


def test_the_right_to_read_keys_of_tenants_is_bound_by_the_owner_of_a_namespace_alone():
    role = one(OPERATOR / "tenants.yaml", "ClusterRole")
    assert role["metadata"]["name"] == names.TENANT_KEYS_ROLE
    assert role["rules"] == [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]
    bindings = [
        document
        for path in (MANIFESTS / "base").rglob("*.yaml")
        for document in documents(path)
        if document.get("roleRef", {}).get("name") == names.TENANT_KEYS_ROLE
    ]
    assert bindings == []
    sample = one(MANIFESTS / "samples" / "tenant.yaml", "RoleBinding")
    assert sample["roleRef"]["name"] == names.TENANT_KEYS_ROLE
    assert sample["subjects"] == [
        {"kind": "ServiceAccount", "name": names.OPERATOR, "namespace": names.SYSTEM_NAMESPACE}
    ]


def test_of_all_secrets_of_services_the_operator_reaches_those_that_it_makes():
    (named,) = [rule for rule in one(OPERATOR / "rbac.yaml", "ClusterRole")["rules"] if "resourceNames" in rule]
    assert (named["resources"], named["resourceNames"]) == (["secrets"], [names.POD_TLS_SECRET, names.NODE_KEYS_SECRET])
    assert set(named["verbs"]) == {"get", "create", "patch"}


def test_nothing_is_granted_that_could_hurt():
    assert not {resource for _, resource, _ in granted()} & {"secrets", "*", "clusterroles", "roles"}
    assert not {verb for _, _, verb in granted()} & {"*", "escalate", "bind", "impersonate"}


@pytest.mark.parametrize("path", ["base/operator/deployment.yaml", "local/operator.yaml"])
def test_arguments_are_options_of_the_command(path):
    options = {flag for parameter in operator.params for flag in parameter.opts}
    text = (MANIFESTS / path).read_text()
    used = [line.strip().removeprefix("- ").partition("=")[0] for line in text.splitlines() if "- --" in line]
    assert used
    assert set(used) <= options


def unknown(given, schema, path=""):
    """Paths of what a sample says and the definition does not know; the API server would drop it without a word."""
    if isinstance(given, list):
        return [found for item in given for found in unknown(item, schema["items"], f"{path}[]")]
    if not isinstance(given, dict) or "properties" not in schema:
        return []
    wrong = [f"{path}.{name}" for name in given if name not in schema["properties"]]
    inner = [(name, item) for name, item in given.items() if name in schema["properties"]]
    return wrong + [f for name, item in inner for f in unknown(item, schema["properties"][name], f"{path}.{name}")]


@pytest.mark.parametrize("path", sorted((MANIFESTS / "samples").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_sample_is_what_the_definitions_know(path):
    models = {
        names.KIND: (InferenceService, crd.definition()),
        names.ACCELERATOR_KIND: (AcceleratorClass, crd.accelerators()),
        names.TENANT_KIND: (Tenant, crd.tenants()),
        names.ROUTE_KIND: (ModelRoute, crd.model_routes()),
    }
    served = [document for document in documents(path) if document["kind"] in models]
    assert served
    for document in served:
        model, definition = models[document["kind"]]
        model.model_validate(document)
        schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        assert unknown(document["spec"], schema["properties"]["spec"], "spec") == []


@pytest.mark.parametrize("service", ["tiny", "x" * 52])
def test_one_monitor_finds_the_replicas_of_every_service_in_every_namespace(service):
    found = documents(MANIFESTS / "components" / "monitoring" / "monitors.yaml")
    (monitor,) = [d["spec"] for d in found if d["metadata"]["name"] == names.IMAGE_RUNTIME]
    labels = pod_labels(service, "abc")
    assert monitor["namespaceSelector"] == {"any": True}
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    (endpoint,) = monitor["podMetricsEndpoints"]
    kept = {r["targetLabel"]: r["sourceLabels"] for r in endpoint["relabelings"]}
    annotation = names.ANNOTATION_TLS.replace(".", "_").replace("/", "_")
    assert kept.pop("__scheme__") == [f"__meta_kubernetes_pod_annotation_{annotation}"]
    assert kept == {
        name: [f"__meta_kubernetes_pod_label_{label.replace('.', '_').replace('/', '_')}"]
        for name, label in (("service", names.LABEL_SERVICE), ("revision", names.LABEL_REVISION))
    }
    assert {names.LABEL_SERVICE, names.LABEL_REVISION} <= set(labels)


ORDERS = {"rollout.paused", "rollout.promote", "rollout.abort"}
"""What is said to a rollout that goes on, in docs/rollouts.md; options of the runtime are in docs/reference.md."""


def paths(node, at=""):
    """Every path that a document says."""
    for name, inner in node.items() if isinstance(node, dict) else ():
        yield f"{at}.{name}".lstrip(".")
        yield from paths(inner, f"{at}.{name}".lstrip("."))


def test_every_field_but_tuning_is_shown_by_a_sample():
    files = (MANIFESTS / "samples").glob("*.yaml")
    services = [d for path in files for d in documents(path) if d["kind"] == names.KIND]
    shown = {path for document in services for path in paths(document["spec"])}
    assert {path for path in FIELDS if not path.startswith("runtime.")} - shown == ORDERS


def test_no_sample_requests_a_device_that_no_image_of_ours_computes_on():
    found = [d for path in (MANIFESTS / "samples").glob("*.yaml") for d in documents(path)]
    accelerators = [d["spec"].get("resources", {}).get("accelerator", {}) for d in found if d["kind"] == names.KIND]
    named = {name for accelerator in accelerators if (name := accelerator.get("resourceName"))}
    assert named
    assert all(name.startswith("nvidia.com/") for name in named), named


def test_sample_is_a_valid_service():
    sample = one(MANIFESTS / "samples" / "tiny.yaml", names.KIND)
    claim = one(MANIFESTS / "samples" / "tiny.yaml", "PersistentVolumeClaim")
    spec = InferenceService.model_validate(sample).spec
    assert spec.model.uri.startswith(f"pvc://{claim['metadata']['name']}/")
    assert spec.autoscaling is not None


@pytest.mark.parametrize(
    ("deployment", "container", "port"),
    [("operator", "operator", "health"), ("gateway", "picker", "state")],
)
def test_a_normal_start_fails_no_probe(deployment, container, port):
    """The first probe comes when the process listens, and is answered when it is ready."""
    template = one(MANIFESTS / "base" / deployment / "deployment.yaml", "Deployment")["spec"]["template"]
    (found,) = [c for c in template["spec"]["containers"] if c["name"] == container]
    startup = found["startupProbe"]
    path, _, wait = startup["httpGet"]["path"].partition("?wait_s=")
    assert (path, startup["httpGet"]["port"]) == (names.PATH_STARTUPZ, port)
    assert 0 < float(wait) < startup["timeoutSeconds"]
    assert startup["initialDelaySeconds"] > 0


def test_the_readme_names_each_component():
    (listed,) = re.findall(r'`COMPONENTS="([^"]+)"`', (MANIFESTS.parent / "README.md").read_text())
    folders = {path.name for path in (MANIFESTS / "components").iterdir()}
    assert set(listed.split()) == folders - {"namespaced"}, "NAMESPACE adds that one"
