"""Uris of models that are fetched: their version, with it and without it."""

import pytest

from kvasir_api import model_uri

COMMIT, DIGEST = "c" * 40, "d" * 64


@pytest.mark.parametrize(
    ("uri", "bare", "pinned", "name"),
    [
        ("hf://org/name", "hf://org/name", f"hf://org/name@{COMMIT}", "name"),
        ("hf://org/name@main", "hf://org/name", f"hf://org/name@{COMMIT}", "name"),
        ("hf://org/name/a.gguf@v1", "hf://org/name/a.gguf", f"hf://org/name/a.gguf@{COMMIT}", "a.gguf"),
        ("s3://bucket/a/b", "s3://bucket/a/b", f"s3://bucket/a/b@sha256:{DIGEST}", "b"),
        ("gs://bucket/a/b/", "gs://bucket/a/b/", f"gs://bucket/a/b/@sha256:{DIGEST}", "b"),
        ("s3://bucket", "s3://bucket", f"s3://bucket@sha256:{DIGEST}", "bucket"),
        ("oci://host:5000/a/b:v1", "oci://host:5000/a/b:v1", f"oci://host:5000/a/b:v1@sha256:{DIGEST}", "b"),
        (f"https://h/a.tar#sha256={'0' * 64}", "https://h/a.tar", f"https://h/a.tar#sha256={DIGEST}", "a.tar"),
    ],
)
def test_one_version_of_a_model(uri, bare, pinned, name):
    found = COMMIT if uri.startswith("hf://") else DIGEST
    assert model_uri.is_fetched(uri)
    assert model_uri.unpinned(uri) == bare
    assert model_uri.pinned(uri, found) == pinned
    assert model_uri.version(pinned) == found
    assert model_uri.unpinned(pinned) == bare
    assert model_uri.file_name(pinned) == name


@pytest.mark.parametrize("uri", ["hf://org/name@main", "s3://bucket/a", "oci://h/a:v1", "oci://h/a@sha256:12"])
def test_a_branch_a_tag_and_a_short_digest_are_no_version(uri):
    assert model_uri.version(uri) == ""


@pytest.mark.parametrize("uri", ["pvc://claim/a", "file:///a", "/a", "org/name", "http://h/a.tar"])
def test_what_is_not_fetched(uri):
    assert not model_uri.is_fetched(uri)
