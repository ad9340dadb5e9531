"""Which files are fetched, and how they are compared."""

import hashlib

import pytest

from kvasir_runtime.errors import ModelUnavailableError
from kvasir_runtime.fetch.model_files import Checksum, checked_names, is_inside, is_needed, is_unpacked

CONTENT = bytes(range(256)) * 10


def md5(content):
    return hashlib.md5(content, usedforsecurity=False)


def of_parts(size):
    parts = b"".join(md5(CONTENT[at : at + size]).digest() for at in range(0, len(CONTENT), size))
    return md5(parts).hexdigest()


@pytest.mark.parametrize("piece", [1, 7, 1000, 9999])
@pytest.mark.parametrize(
    "stated",
    [
        Checksum(algorithm="sha256", value=hashlib.sha256(CONTENT).hexdigest()),
        Checksum(algorithm="md5", value=md5(CONTENT).hexdigest()),
        *(Checksum(algorithm="md5", value=of_parts(size), part_bytes=size) for size in (100, 256, 1280, 2560, 5000)),
    ],
    ids=str,
)
def test_a_digest_is_of_the_bytes_however_they_come(stated, piece):
    for content, want in ((CONTENT, True), (CONTENT[:-1], False), (CONTENT[:-1] + b"x", False)):
        digest = stated.digest()
        for at in range(0, len(content), piece):
            digest.update(content[at : at + piece])
        assert digest.matches() is want


@pytest.mark.parametrize(
    ("path", "want"),
    [
        ("config.json", True),
        ("model-00001-of-00002.safetensors", True),
        ("1_Pooling/config.json", True),
        ("tokenizer.model.v3", True),
        ("chat_template.jinja", True),
        ("pytorch_model.bin", False),
        ("consolidated.00.safetensors", False),
        ("onnx/model.safetensors", False),
        ("2_Dense/model.safetensors", True),
        ("2_Dense/pytorch_model.bin", False),
        *((f"{folder}/model.safetensors", False) for folder in ("vae", "base", "license", "Incense", "dense", "Xense")),
        ("modeling_tiny.py", False),
    ],
)
def test_what_serving_needs(path, want):
    assert is_needed(path) is want


def test_a_model_may_lie_in_a_directory_of_an_archive():
    assert is_unpacked("models/tiny/model.safetensors")
    assert is_unpacked("a/tiny-Q4.gguf")
    assert not is_unpacked("a/pytorch_model.bin")


@pytest.mark.parametrize("name", ["config.json", "a/b.json", "a b.json", "..json", "a..b"])
def test_a_path_in_a_model(name):
    assert is_inside(name)


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", ".", "..", "a/../b", "a/.", "a\\b", "a\nb", "a\0b"])
def test_a_path_that_may_lead_out_of_it(name):
    assert not is_inside(name)
    with pytest.raises(ModelUnavailableError, match="is no path in a model's folder"):
        checked_names("s3://bucket/a", ["config.json", name])


def test_nothing_is_no_model():
    with pytest.raises(ModelUnavailableError, match="there is no file of a model under s3://bucket/a; expected"):
        checked_names("s3://bucket/a", [])
