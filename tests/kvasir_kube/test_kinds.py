"""Paths and small readers of objects."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    one, other = (kinds.with_shared_parts(json.loads(said)) for _ in range(2))
    assert one == other == json.loads(said)
    assert next(iter(one["metadata"])) is next(iter(other["metadata"]))
    assert one["metadata"]["labels"]["app"] is other["metadata"]["labels"]["app"]
    assert one["list"][2] is other["list"][2]


JSON = st.recursive(
    st.none() | st.booleans() | st.sampled_from([0, 1, 1.0, 2, "", "a", "x" * 65]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
)


def exact(node):
    """With types, since 1 and True and 1.0 are equal."""
    if isinstance(node, dict):
        return {name: exact(value) for name, value in node.items()}
    return [exact(item) for item in node] if isinstance(node, list) else (type(node), node)


@given(JSON, JSON)
def test_a_copy_of_shared_parts_is_the_same_document_and_changes_no_other(node, like):
    before = copy.deepcopy(like)
    made = kinds.with_shared_parts(copy.deepcopy(node), like)
    assert exact(made) == exact(node)
    assert exact(like) == exact(before)


def test_equal_parts_are_those_of_the_other_document():
    like = {"spec": {"ports": [{"port": 1, "name": "x" * 65}], "ip": "10.0.0.1"}, "empty": {}}
    node = {"spec": {"ports": [{"port": 1, "name": "x" * 65}], "ip": "10.0.0.2"}, "empty": {}}
    made = kinds.with_shared_parts(copy.deepcopy(node), like)
    assert made == node
    assert made["spec"]["ports"] is like["spec"]["ports"]
    assert kinds.with_shared_parts(copy.deepcopy(like), like) is not None
    assert kinds.with_shared_parts(copy.deepcopy(like), like)["spec"] is like["spec"]
