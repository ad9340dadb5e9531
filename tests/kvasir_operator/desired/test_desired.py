"""Sources, faults, revisions, pod templates and children of a service."""

from dataclasses import replace

import pytest

from fakes.manifests import service
from fakes.stages import pod_template, resolved, revision_of
from kvasir_api import names
from kvasir_operator.desired import protected_fields
from kvasir_operator.desired.children import children
from kvasir_operator.desired.revision import revision_id, surplus
from kvasir_operator.desired.source import allowed, model_source
from kvasir_operator.desired.template import cores
from kvasir_operator.observed.replica import Replica
from kvasir_operator.observed.service import Revision, observed
from kvasir_operator.observed.settings import OperatorSettings

SETTINGS = OperatorSettings(runtime_image="gpu:1", runtime_image_cpu="cpu:1", model_dirs=("/srv/models",))


def seen(obj=None, **fields):
    return observed(obj or service(), **{"revisions": (), "deployments": (), "replicas": (), "svc": None, **fields})


def container(obj):
    return pod_template(seen(obj), "rev", SETTINGS)["spec"]["containers"][0]


@pytest.mark.parametrize(
    ("uri", "kind", "volume", "path"),
    [
        ("pvc://models/a/b", "pvc", "models", "/models/a/b"),
        ("pvc://models", "pvc", "models", "/models"),
        ("pvc://models/a/", "pvc", "models", "/models/a"),
        ("file:///srv/models/x/", "file", "/srv/models/x", "/models"),
    ],
)
def test_source_names_volume_and_path(uri, kind, volume, path):
    where = model_source(uri)
    assert (where.kind, where.volume, where.path) == (kind, volume, path)


@pytest.mark.parametrize(
    ("directory", "roots", "answer"),
    [
        ("/srv/models/x", ("/srv/models",), True),
        ("/srv/models", ("/srv/models/",), True),
        ("/srv/modelsx", ("/srv/models",), False),
        ("/etc", (), False),
        ("/anything", ("/",), True),
    ],
)
def test_only_directories_below_a_root_are_allowed(directory, roots, answer):
    assert allowed(directory, roots) is answer


@pytest.mark.parametrize(
    ("obj", "fields", "message"),
    [
        (service(), {}, None),
        (service(model={"uri": "file:///srv/models/x"}), {}, None),
        (
            service(model={"uri": "file:///etc/x"}),
            {},
            "spec.model.uri: /etc/x is not below a directory that the operator allows (--allow-model-dir: /srv/models)",
        ),
        (service(), {"claim_found": False}, "spec.model.uri: there is no PersistentVolumeClaim default/models"),
        (
            service(runtime={"maxBatchTokens": 4, "blockSize": 16}),
            {},
            "spec.runtime: Value error, maxBatchTokens 4 is less than blockSize 16",
        ),
    ],
)
def test_what_cannot_be_honoured_names_the_field(obj, fields, message):
    found = resolved(seen(obj, **fields), SETTINGS).violation
    assert (found and found.message) == message


def test_revision_follows_what_shapes_a_pod_and_nothing_else():
    first = revision_of(seen())
    same = [
        service(replicas=7, autoscaling={"maxReplicas": 9}, rollout={"maxSurge": 2}, generation=4),
        service(runtime={"dtype": "auto"}, drain={"timeoutSeconds": 600}),
        service(model={"uri": "pvc://models/tiny", "servedName": "tiny"}),
    ]
    other = [
        service(runtime={"blockSize": 32}),
        service(resources={"cpu": "3"}),
        service(model={"uri": "pvc://models/tiny2"}),
        service(pod={"nodeSelector": {"a": "b"}}),
        service(drain={"timeoutSeconds": 60}),
    ]
    assert {revision_of(seen(obj)) for obj in same} == {first}
    assert len({first, *(revision_of(seen(obj)) for obj in other)}) == 1 + len(other)


def test_revision_identity_is_pinned():
    """A changed hash would roll every pod of every cluster at the next upgrade."""
    assert revision_id({"model": {"uri": "pvc://models/tiny"}, "servedName": "tiny"}) == "5485ad1ada"


def test_an_existing_revision_keeps_its_template_whatever_the_operator_renders():
    id_ = revision_of(seen())
    kept = Revision(id=id_, number=3, inputs={}, template={"kept": True}, name="tiny-x")
    world = seen()
    world = type(world)(**{f: getattr(world, f) for f in world.__slots__} | {"revisions": (kept,)})
    assert resolved(world, SETTINGS).revision.template == {"kept": True}
    assert resolved(world, SETTINGS).revision.number == 3


def test_going_back_makes_an_old_revision_the_newest():
    id_ = revision_of(seen())
    old = Revision(id=id_, number=1, inputs={}, template={}, name="a")
    newer = Revision(id="other", number=2, inputs={}, template={}, name="b")
    world = seen()
    world = type(world)(**{f: getattr(world, f) for f in world.__slots__} | {"revisions": (old, newer)})
    assert resolved(world, SETTINGS).revision.number == 3


def test_old_revisions_without_pods_are_bounded():
    revisions = tuple(Revision(id=str(n), number=n, inputs={}, template={}, name=f"r{n}") for n in range(8))
    world = seen()
    world = type(world)(**{f: getattr(world, f) for f in world.__slots__} | {"revisions": revisions})
    assert surplus(world, "7") == ("r0", "r1")


def test_arguments_are_said_and_not_defaulted():
    obj = service(
        model={"uri": "pvc://models/tiny", "servedName": "Big"},
        runtime={"kvCacheTokens": 4096, "prefixCache": False, "memoryPercent": 50},
    )
    assert container(obj)["args"] == [
        "/models/tiny", "--served-model-name", "Big", "--host", "$(KVASIR_LISTEN_ADDRESS)", "--port", "8000",
        "--ops-port", "8001", "--device", "cpu", "--drain-timeout", "600", "--log-format", "json",
        "--pod-revision", "rev", "--served-model-name", "default/tiny", "--kv-cache-tokens", "4096",
        "--memory-fraction", "0.5", "--no-prefix-cache",
    ]  # fmt: skip


def test_the_container_knows_the_name_that_the_service_gives_to_its_model():
    runtime = container(service(model={"uri": "file:///srv/models/$(HOME)"}))
    assert {"name": "KVASIR_MODEL_URI", "value": "file:///srv/models/$$(HOME)"} in runtime["env"]
    assert {"name": "KVASIR_SERVICE", "value": "default/tiny"} in runtime["env"]


def test_a_pod_listens_on_every_address_of_its_network():
    """kubectl port-forward comes to 127.0.0.1, and a cluster may have IPv4, IPv6 or both."""
    assert {"name": "KVASIR_LISTEN_ADDRESS", "value": "::"} in container(service())["env"]


def test_accelerators_choose_image_device_and_limits():
    runtime = container(service(resources={"accelerator": {"count": 1}, "cpu": "500m", "memory": "8Gi"}))
    assert runtime["image"] == "gpu:1"
    assert runtime["args"][runtime["args"].index("--device") + 1] == "cuda"
    assert runtime["resources"] == {
        "requests": {"cpu": "500m", "memory": "8Gi"},
        "limits": {"memory": "8Gi", "nvidia.com/gpu": "1"},
    }
    assert container(service())["image"] == "cpu:1"


def test_pod_is_restricted_and_passes_placement_through():
    obj = service(
        pod={
            "nodeSelector": {"zone": "a"},
            "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "imagePullSecrets": [{"name": "pull"}],
        },
        drain={"timeoutSeconds": 60},
    )
    spec = pod_template(seen(obj), "rev", SETTINGS)["spec"]
    runtime = spec["containers"][0]
    assert spec["nodeSelector"] == {"zone": "a"}
    assert spec["tolerations"] == [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert spec["imagePullSecrets"] == [{"name": "pull"}]
    assert spec["terminationGracePeriodSeconds"] == 90
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert runtime["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert {p: runtime[p]["httpGet"]["port"] for p in ("startupProbe", "readinessProbe", "livenessProbe")} == {
        "startupProbe": "ops",
        "readinessProbe": "ops",
        "livenessProbe": "ops",
    }


@pytest.mark.parametrize(("quantity", "threads"), [("500m", 1), ("2", 2), ("2500m", 3), ("1.5", 2), ("0", 1)])
def test_threads_follow_cores(quantity, threads):
    assert cores(quantity) == threads


def with_pod(found):
    return replace(found, replicas=(Replica(name="pod", revision="any"),))


def test_a_budget_waits_for_the_first_pod():
    world = seen()
    current = resolved(world, SETTINGS).revision
    kinds = [[m["kind"] for m in children(w, current, {}, SETTINGS)] for w in (world, with_pod(world))]
    assert kinds[0] == ["Service", "NetworkPolicy", "ControllerRevision"]
    assert kinds[1] == ["Service", "PodDisruptionBudget", "NetworkPolicy", "ControllerRevision"]


def test_children_belong_to_the_service_alone():
    world = with_pod(seen(service(name="a" * 52)))
    current = resolved(world, SETTINGS).revision
    made = children(world, current, {current.id: 2}, SETTINGS)
    assert [m["kind"] for m in made] == [
        "Service",
        "PodDisruptionBudget",
        "NetworkPolicy",
        "ControllerRevision",
        "Deployment",
    ]
    assert all(len(m["metadata"]["name"]) <= 63 for m in made)
    for manifest in made:
        (owner,) = manifest["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (world.uid, True, False)
        assert all(len(value) <= 63 for value in manifest["metadata"]["labels"].values())
    workload = made[-1]
    selector = workload["spec"]["selector"]["matchLabels"]
    assert selector.items() <= workload["spec"]["template"]["metadata"]["labels"].items()
    assert selector[names.LABEL_REVISION] == current.id


def test_guards_cover_every_replica_and_keep_clients_off_the_ops_port():
    world = with_pod(seen())
    current = resolved(world, SETTINGS).revision
    found = children(world, current, {}, replace(SETTINGS, system_namespace="home"))
    made = {manifest["kind"]: manifest.get("spec", {}) for manifest in found}
    labels = current.template["metadata"]["labels"]
    budget, policy = made["PodDisruptionBudget"], made["NetworkPolicy"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"]["matchLabels"].items() <= labels.items()
    # Pods that were quarantined are guarded too, and no replicas.
    assert policy["podSelector"]["matchLabels"].items() < budget["selector"]["matchLabels"].items()
    clients, control = policy["ingress"]
    assert [p["port"] for p in clients["ports"]] == [names.PORT_HTTP]
    assert "from" not in clients
    assert [p["port"] for p in control["ports"]] == [names.PORT_OPS]
    ours, replicas = control["from"]
    assert ours["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "home"}
    assert ours["podSelector"]["matchLabels"] == {names.LABEL_PART_OF: names.PART_OF}
    # Of the same namespace and service: a new one reads from the others what they are asked most.
    assert replicas == {"podSelector": {"matchLabels": budget["selector"]["matchLabels"]}}


def pods(**spec):
    return pod_template(seen(service(**spec)), "rev", SETTINGS)


def test_every_name_reaches_the_server():
    args = pods(model={"uri": "pvc://models/a", "aliases": ["x", "y"]})["spec"]["containers"][0]["args"]
    given = [args[i + 1] for i, arg in enumerate(args) if arg == "--served-model-name"]
    assert given == ["tiny", "x", "y", "default/tiny"]


def test_claims_of_devices_are_passed_through_and_computed_on():
    claims = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}, {"name": "nic", "resourceClaimName": "shared"}]
    made = pods(resources={"resourceClaims": claims})["spec"]
    (runtime,) = made["containers"]
    assert made["resourceClaims"] == claims
    assert runtime["resources"]["claims"] == [{"name": "gpu"}, {"name": "nic"}]
    assert runtime["image"] == "gpu:1"
    assert runtime["args"][runtime["args"].index("--device") + 1] == "cuda"
    assert "OMP_NUM_THREADS" not in {variable["name"] for variable in runtime["env"]}


def test_labels_of_a_user_match_no_other_selector():
    made = pods(pod={"labels": {"app": "victim", "team": "a"}, "annotations": {"inject": "true"}})["metadata"]
    assert {k: v for k, v in made["labels"].items() if k.startswith("user.")} == {
        "user.serving.kvasir.dev/app": "victim",
        "user.serving.kvasir.dev/team": "a",
    }
    assert set(made["labels"]) - set(pods()["metadata"]["labels"]) == {
        "user.serving.kvasir.dev/app",
        "user.serving.kvasir.dev/team",
    }
    assert made["annotations"] == {"user.serving.kvasir.dev/inject": "true"}


def test_replicas_of_one_revision_are_spread():
    (found,) = pods(pod={"topologySpread": [{"maxSkew": 2}]})["spec"]["topologySpreadConstraints"]
    assert found == {
        "topologyKey": "topology.kubernetes.io/zone",
        "maxSkew": 2,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {
            "matchLabels": {names.LABEL_SERVICE: "tiny", names.LABEL_REVISION: "rev", names.LABEL_ROLE: "serve"}
        },
    }


@pytest.mark.parametrize(("percent", "endpoint", "wanted"), [(0, "http://c", []), (5, "", []), (5, "http://c", ["5"])])
def test_spans_need_a_share_and_a_collector(percent, endpoint, wanted):
    settings = replace(SETTINGS, otlp_traces_endpoint=endpoint)
    spec = service(observability={"traceSamplePercent": percent})
    args = pod_template(seen(spec), "rev", settings)["spec"]["containers"][0]["args"]
    assert [args[i + 1] for i, arg in enumerate(args) if arg == "--otlp-sample-percent"] == wanted
    assert ("--otlp-traces-endpoint" in args) is bool(wanted)


TIER = {"runtime": {"kvHostBytes": 1 << 30}}
SIGNED = replace(SETTINGS, signs_calls=True)


def reach_of_blocks(policy):
    """Who reaches the port of blocks."""
    return [rule["from"] for rule in policy["spec"]["ingress"] if rule["ports"][0]["port"] == names.PORT_KV]


def exchanging(settings=SIGNED, **spec):
    """The option, the ports of the container, and who reaches the port of blocks."""
    world = with_pod(seen(service(**spec)))
    current = resolved(world, settings).revision
    (container,) = current.template["spec"]["containers"]
    (policy,) = [m for m in children(world, current, {}, settings) if m["kind"] == "NetworkPolicy"]
    args = container["args"]
    option = args[args.index("--kv-transfer-port") + 1] if "--kv-transfer-port" in args else None
    return option, [port["containerPort"] for port in container["ports"]], reach_of_blocks(policy)


def test_replicas_with_a_second_tier_exchange_blocks_among_themselves():
    option, ports, (reach,) = exchanging(**TIER)
    assert (option, ports) == ("8002", [names.PORT_HTTP, names.PORT_OPS, names.PORT_KV])
    (replicas,) = reach
    assert set(replicas) == {"podSelector"}
    assert replicas["podSelector"]["matchLabels"][names.LABEL_SERVICE] == "tiny"


@pytest.mark.parametrize(("pods_of", "is_open"), [("before", True), ("after", False), ("", False)])
def test_the_port_of_blocks_is_open_as_long_as_pods_of_a_revision_have_it(pods_of, is_open):
    """A service that exchanges no blocks any more; the pods of the revision before are replaced one after the other."""
    before = resolved(seen(service(**TIER)), SIGNED).revision
    world = seen(service())
    after = resolved(world, SIGNED).revision
    ids = {"before": before.id, "after": after.id}
    replicas = (Replica(name="pod", revision=ids[pods_of]),) if pods_of else ()
    world = replace(world, revisions=(before, after), replicas=replicas)
    (policy,) = [m for m in children(world, after, {}, SIGNED) if m["kind"] == "NetworkPolicy"]
    assert bool(reach_of_blocks(policy)) == is_open


@pytest.mark.parametrize(
    ("spec", "settings"),
    [
        ({}, SIGNED),
        (TIER, SETTINGS),  # no keys
        ({**TIER, "runtimeVersion": "0.1.0"}, SIGNED),  # it may not know the option
        ({**TIER, "resources": {"accelerator": {"count": 1, "resourceName": "nvidia.com/gpu"}}}, SIGNED),
    ],
)
def test_other_replicas_have_no_port_of_blocks(spec, settings):
    assert exchanging(settings, **spec) == (None, [names.PORT_HTTP, names.PORT_OPS], [])


def test_no_container_of_a_patch_takes_the_port_of_blocks():
    ours = {"spec": {"containers": [{"name": "runtime", "ports": [{"name": "kv", "containerPort": 8002}]}]}}
    beside = {"name": "beside", "ports": [{"containerPort": 8002}]}
    theirs = {"spec": {"containers": [*ours["spec"]["containers"], beside]}}
    assert list(protected_fields._containers(ours, theirs)) == ["port 8002 is container runtime's own"]
