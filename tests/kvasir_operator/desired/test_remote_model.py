"""A model that pods fetch: which version all load, how it is found, and what its pods have for fetching it."""

import json
from dataclasses import replace
from typing import NamedTuple

import pytest

from fakes.manifests import service
from fakes.models import facts
from fakes.stages import pod_template, resolved, revision_of
from kvasir_api import names
from kvasir_api.inspection import RemoteInspection, encode
from kvasir_api.status import ModelStatus
from kvasir_operator.desired import remote_model
from kvasir_operator.desired.inspection import SOURCE_AGAIN_S, inspection_plan, known_model, pod_name
from kvasir_operator.observed.model_pod import ModelPod
from kvasir_operator.observed.service import observed
from kvasir_operator.observed.settings import OperatorSettings

SETTINGS = OperatorSettings(hub_endpoint="https://mirror.example")
URI = "hf://org/name"
COMMIT, OTHER, DIGEST = "c" * 40, "d" * 40, "e" * 64
TIME, NOW = "2026-01-01T12:00:00Z", 1767268800.0
READ = ModelStatus(uri=URI, inspected_at=TIME, commit=COMMIT, download_bytes=3 * 2**30)
FAILED = ModelStatus(uri=URI, inspected_at=TIME, message="model org/name is gated")


def world(*, uri=URI, known=None, pods=(), loads="", secret="", cache="", inspect="Auto", **spec):
    """loads: the commit that a running revision has of the same uri."""
    given = {**spec, "model": {"uri": uri, "secretName": secret, "cacheClaim": cache, "inspect": inspect}}
    owner = [{"controller": True, "uid": "uid-tiny"}]
    metadata = {"name": "tiny-a", "labels": {names.LABEL_REVISION: "a"}, "ownerReferences": owner}
    inputs = {"model": {"uri": uri, "commit": loads}}
    revision = {"metadata": metadata, "revision": 1, "data": {"inputs": inputs, "template": {}}}
    seen = observed(
        service(**given),
        revisions=[revision] if loads else (),
        deployments=[{"metadata": metadata, "spec": {"replicas": 1}}] if loads else (),
        replicas=(),
        svc=None,
    )
    return replace(seen, model=known, inspections=tuple(pods))


class Step(NamedTuple):
    found: ModelStatus | None
    create: dict | None
    waiting: str


def step(seen, *, wanted=1, waited_s=0.0, now=NOW):
    """What is known then, and the plan of a spec that was resolved with it."""
    found = known_model(seen, wanted=wanted, waited_s=waited_s, now=now, time=TIME)
    after = resolved(replace(seen, model=found), SETTINGS)
    plan = inspection_plan(after, SETTINGS, wanted=wanted, written=found == seen.model, now=now)
    return Step(found, plan.create, plan.waiting)


def pod(**fields):
    return ModelPod(**{"name": pod_name(world()), "uid": "u", "ended": True, **fields})


def said(**fields):
    return encode(RemoteInspection(**{"commit": COMMIT, "download_bytes": 9, "facts": facts(), **fields})).decode()


@pytest.mark.parametrize(
    ("seen", "want"),
    [
        (world(), ""),
        (world(uri=f"{URI}@v1"), ""),
        (world(uri=f"{URI}@{OTHER}"), OTHER),
        (world(known=READ), COMMIT),
        (world(known=FAILED), ""),
        (world(uri=f"{URI}@v1", known=READ), ""),
        (world(loads=OTHER), OTHER),
        (world(uri="pvc://a/b"), ""),
        (world(uri="s3://bucket/a"), ""),
        (world(uri=f"s3://bucket/a@sha256:{DIGEST}"), DIGEST),
        (world(uri="oci://host/org/name:v1"), ""),
        (world(uri=f"oci://host/org/name:v1@sha256:{DIGEST}"), DIGEST),
        (world(uri=f"https://host/a.tar#sha256={DIGEST}"), DIGEST),
    ],
    ids=[
        "unknown",
        "tag",
        "named",
        "read",
        "failed",
        "another's",
        "what replicas load",
        "claim",
        "bucket",
        "list of a bucket",
        "registry",
        "manifest",
        "archive",
    ],
)
def test_the_commit_is_the_named_one_or_what_was_read_or_what_replicas_load(seen, want):
    assert remote_model.commit(seen) == want


@pytest.mark.parametrize("inspect", ["Auto", "Never"])
@pytest.mark.parametrize("wanted", [0, 1])
def test_no_replica_starts_before_the_commit_is_known(inspect, wanted):
    found = step(world(inspect=inspect), wanted=wanted)
    assert found.create is not None
    assert found.waiting.endswith("reads the model's config")


def test_what_a_pod_found_is_kept():
    found = step(world(pods=[pod(said=said())])).found
    assert (found.commit, found.download_bytes, found.architecture) == (COMMIT, 9, "LlamaForCausalLM")
    assert json.loads(found.facts)["shape"]["parameters"] == 8_030_261_248


def test_a_config_that_cannot_be_judged_is_no_obstacle():
    found = step(world(pods=[pod(said=said(facts=None, message="a GGUF file"))]))
    assert (found.found.commit, found.found.message, found.waiting) == (COMMIT, "a GGUF file", "")
    assert resolved(replace(world(), model=found.found), SETTINGS).violation is None


@pytest.mark.parametrize(
    ("ended", "says"),
    [
        (pod(trouble="kvasir: model org/name is gated"), "model org/name is gated"),
        (pod(said=said(commit="main")), "the source named 'main', which is no version"),
        (pod(said="hello"), "not the inspection of a model that is fetched"),
    ],
)
def test_what_is_not_found_stalls_the_service_and_is_looked_for_again(ended, says):
    found = step(world(pods=[ended])).found
    seen = world(known=found)
    broken = resolved(seen, SETTINGS).violation
    assert broken.reason == "ModelUnavailable"
    assert broken.message.startswith(f"spec.model.uri: {says}")
    assert step(seen, now=NOW + SOURCE_AGAIN_S).create is None
    assert step(seen, now=NOW + SOURCE_AGAIN_S + 1).create is not None


@pytest.mark.parametrize(
    "seen",
    [world(loads=COMMIT), world(uri=f"{URI}@{COMMIT}", inspect="Never")],
    ids=["served", "named, and not to be inspected"],
)
def test_a_commit_that_is_known_otherwise_is_in_the_status(seen):
    found = step(seen)
    assert (found.create, found.waiting, found.found.commit) == (None, "", COMMIT)


def test_a_pod_that_looks_again_looks_at_the_commit_of_the_replicas():
    """Facts of other overrides: main may have moved meanwhile."""
    known = READ.model_copy(update={"facts": encode(facts()).decode()})
    again = step(world(known=known, runtime={"hfOverrides": '{"a": 1}'}))
    assert again.create["spec"]["containers"][0]["args"][0] == f"{URI}@{COMMIT}"
    assert again.found.commit == COMMIT


def test_a_commit_makes_a_revision():
    assert revision_of(world(known=READ)) != revision_of(world(known=READ.model_copy(update={"commit": OTHER})))


def test_pods_fetch_what_the_commit_has():
    spec = pod_template(world(known=READ, secret="hub"), "rev", SETTINGS)["spec"]
    (container,) = spec["containers"]
    assert container["args"][0] == f"{URI}@{COMMIT}"
    env = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert (env["HF_ENDPOINT"], env["HF_HUB_CACHE"]) == ("https://mirror.example", "/models")
    assert env[names.ENV_SOURCE_SETTINGS] == "/source"
    mounts = {mount["mountPath"]: mount.get("readOnly", False) for mount in container["volumeMounts"]}
    assert (mounts["/models"], mounts["/source"]) == (False, True)
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["source"]["secret"] == {"secretName": "hub", "optional": True}
    assert volumes["model"] == {"name": "model", "emptyDir": {"sizeLimit": "3328Mi"}}
    assert container["resources"]["requests"]["ephemeral-storage"] == "3328Mi"


def test_pods_share_what_they_fetch_on_a_claim_and_the_one_that_looks_has_no_part_in_it():
    seen = world(known=READ, cache="models")
    spec = pod_template(seen, "rev", SETTINGS)["spec"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["model"] == {"name": "model", "persistentVolumeClaim": {"claimName": "models"}}
    assert spec["securityContext"]["fsGroup"] == spec["securityContext"]["runAsUser"]
    assert "ephemeral-storage" not in json.dumps(spec)
    looks = step(replace(world(cache="models"), claim_found=True)).create["spec"]
    assert "persistentVolumeClaim" not in json.dumps(looks)


def test_a_cache_that_is_not_there_is_named():
    broken = resolved(replace(world(known=READ, cache="models"), claim_found=False), SETTINGS).violation
    assert broken.message == "spec.model.cacheClaim: there is no PersistentVolumeClaim default/models"


def test_a_model_of_a_claim_has_nothing_of_a_hub():
    text = json.dumps(pod_template(world(uri="pvc://a/b"), "rev", SETTINGS))
    assert "HF_" not in text
    assert "ephemeral-storage" not in text


@pytest.mark.parametrize(
    ("uri", "argument", "disk"),
    [
        ("s3://bucket/a", f"s3://bucket/a@sha256:{DIGEST}", "3328Mi"),
        ("gs://bucket/a/", f"gs://bucket/a/@sha256:{DIGEST}", "3328Mi"),
        ("oci://host/org/name:v1", f"oci://host/org/name:v1@sha256:{DIGEST}", "6400Mi"),
        (f"https://host/a.tar#sha256={DIGEST}", f"https://host/a.tar#sha256={DIGEST}", "9472Mi"),
    ],
    ids=["s3", "gs", "oci", "https"],
)
def test_pods_fetch_one_version_of_what_is_in_a_bucket_a_registry_or_an_archive(uri, argument, disk):
    known = ModelStatus(uri=uri, inspected_at=TIME, commit=DIGEST, download_bytes=3 * 2**30)
    spec = pod_template(world(uri=uri, known=known, secret="keys"), "rev", SETTINGS)["spec"]
    (container,) = spec["containers"]
    assert container["args"][0] == argument
    env = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert (env[names.ENV_MODEL_CACHE], env[names.ENV_SOURCE_SETTINGS]) == ("/models", "/source")
    assert env[names.ENV_MODEL_URI] == uri
    assert not any(name.startswith("HF_") for name in env)
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["source"]["secret"] == {"secretName": "keys", "optional": True}
    assert volumes["model"] == {"name": "model", "emptyDir": {"sizeLimit": disk}}


@pytest.mark.parametrize("uri", [URI, "s3://bucket/a"])
def test_pods_of_a_namespace_share_a_directory_of_the_node(uri):
    settings = OperatorSettings(model_cache_dir="/var/lib/kvasir/", model_cache_bytes=10**12)
    seen = world(uri=uri, known=READ.model_copy(update={"uri": uri}), secret="keys")
    spec = pod_template(seen, "rev", settings)["spec"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    directory = {"path": "/var/lib/kvasir/default", "type": "DirectoryOrCreate"}
    assert volumes["model"] == {"name": "model", "hostPath": directory}
    assert volumes["start"]["hostPath"]["path"] == "/var/lib/kvasir/default/.start"
    (container,) = spec["containers"]
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert mounts["model"] == {"name": "model", "mountPath": "/models", "readOnly": True}
    assert mounts["start"] == {"name": "start", "mountPath": "/start"}
    env = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert env[names.ENV_MODEL_CACHE_READ_ONLY] == "/models"
    assert env[names.ENV_STARTUP_CACHE] == "/start"
    assert "source" not in volumes, "a replica that fetches nothing has no credentials"
    assert not {names.ENV_SOURCE_SETTINGS, names.ENV_MODEL_CACHE, "HF_HUB_CACHE"} & set(env)
    assert "ephemeral-storage" not in json.dumps(spec)
    claimed = json.dumps(pod_template(world(known=READ, cache="models"), "rev", settings))
    assert "hostPath" not in claimed
    assert names.ENV_MODEL_CACHE_READ_ONLY not in claimed
    assert "/models/.start" in claimed
    alone = json.dumps(pod_template(world(uri=uri, known=READ.model_copy(update={"uri": uri})), "rev", SETTINGS))
    assert names.ENV_STARTUP_CACHE not in alone, "there is nothing that outlives the pod"
    looks = step(world(uri=uri)).create["spec"]
    assert "hostPath" not in json.dumps(looks)


def test_an_image_is_a_volume_where_the_cluster_has_those():
    settings = OperatorSettings(model_image_volumes=True, model_cache_dir="/cache")
    uri = "oci://registry.example/org/name:v1"
    known = ModelStatus(uri=uri, inspected_at=TIME, commit=DIGEST, download_bytes=3 * 2**30)
    seen = world(uri=uri, known=known, secret="keys", pod={"imagePullSecrets": [{"name": "own"}]})
    spec = pod_template(seen, "rev", settings)["spec"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    reference = f"registry.example/org/name:v1@sha256:{DIGEST}"
    assert volumes["model"] == {"name": "model", "image": {"reference": reference, "pullPolicy": "IfNotPresent"}}
    assert not {"source", "start"} & set(volumes)
    (container,) = spec["containers"]
    assert container["args"][0] == "/models"
    assert {"name": "model", "mountPath": "/models", "readOnly": True} in container["volumeMounts"]
    assert spec["imagePullSecrets"] == [{"name": "own"}, {"name": "keys"}], "the kubelet signs in"
    env = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert env[names.ENV_MODEL_URI] == uri
    assert not {names.ENV_SOURCE_SETTINGS, names.ENV_MODEL_CACHE, names.ENV_MODEL_CACHE_READ_ONLY} & set(env)
    assert "ephemeral-storage" not in json.dumps(spec)
    looks = step(world(uri=uri)).create["spec"]
    assert "image" not in looks["volumes"][0], "which version it is, a pod asks the registry"


@pytest.mark.parametrize("given", [{"uri": URI}, {"uri": "oci://host/org/name:v1", "cache": "models"}])
def test_other_models_are_fetched_all_the_same(given):
    known = READ.model_copy(update={"uri": given["uri"]})
    template = json.dumps(pod_template(world(known=known, **given), "rev", OperatorSettings(model_image_volumes=True)))
    assert '"pullPolicy"' not in template
