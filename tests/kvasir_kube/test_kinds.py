"""Paths and small readers of objects."""

import json

import pytest

from kvasir_kube import kinds


@pytest.mark.parametrize(
    ("kind", "args", "path"),
    [
        (kinds.POD, ("a", "p"), "/api/v1/namespaces/a/pods/p"),
        (kinds.POD, (), "/api/v1/pods"),
        (kinds.DEPLOYMENT, ("a",), "/apis/apps/v1/namespaces/a/deployments"),
        (
            kinds.INFERENCE_SERVICE,
            ("a", "m", "status"),
            "/apis/serving.kvasir.dev/v1alpha1/namespaces/a/inferenceservices/m/status",
        ),
        (kinds.NAMESPACE, ("ignored", "a"), "/api/v1/namespaces/a"),
    ],
)
def test_path_follows_group_and_scope(kind, args, path):
    assert kind.path(*args) == path


def test_slim_drops_what_is_never_read():
    notes = {"kubectl.kubernetes.io/last-applied-configuration": "{}", "own": "1"}
    obj = {"metadata": {"name": "a", "managedFields": [{}], "annotations": notes}, "spec": {}}
    assert kinds.strip_managed_fields(obj) == {"metadata": {"name": "a", "annotations": {"own": "1"}}, "spec": {}}


@pytest.mark.parametrize(("version", "number"), [("12", 12), ("", -1), ("opaque", -1)])
def test_resource_version_is_a_number_or_unknown(version, number):
    assert kinds.resource_version({"metadata": {"resourceVersion": version}}) == number


def test_equal_texts_of_two_documents_are_one_object():
    said = json.dumps({"metadata": {"labels": {"app": "kvasir"}}, "list": [1, None, "one word", "x" * 65]})
    one, other = (kinds.with_shared_text(json.loads(said)) for _ in range(2))
    assert one == other == json.loads(said)
    assert next(iter(one["metadata"])) is next(iter(other["metadata"]))
    assert one["metadata"]["labels"]["app"] is other["metadata"]["labels"]["app"]
    assert one["list"][2] is other["list"][2]
