"""Models in a bucket of a real S3 API (moto) on loopback, behind a server that fails as networks do."""

import base64
import hashlib
import re

import pytest

from fakes import file_server, s3_api, source_secret
from kvasir_api import model_uri
from kvasir_runtime import source
from kvasir_runtime.errors import ModelError, ModelUnavailableError
from kvasir_runtime.fetch import fetched_model

WEIGHTS = bytes(range(256)) * 800
CONFIG = b'{"model_type": "llama"}'
FILES = {
    "models/tiny/config.json": CONFIG,
    "models/tiny/model.safetensors": WEIGHTS,
    "models/tiny/pytorch_model.bin": b"never",
    "models/tiny/original/model.safetensors": b"again",
    "models/tiny-large/config.json": b"{}",
    "models/tiny.gguf": b"GGUF" + WEIGHTS,
}
API = r"; check its name, and the S3 API that is asked \(key endpoint of the Secret of spec\.model\.secretName\)"
SECRET_KEY = "secret-not-to-be-shown"


@pytest.fixture(scope="module")
def bucket():
    """The URL of an S3 API with the bucket `bucket`."""
    with s3_api.serving() as url:
        yield url


@pytest.fixture(scope="module")
def client(bucket):
    found = s3_api.client(bucket)
    found.create_bucket(Bucket="bucket")
    for key, content in FILES.items():
        found.put_object(Bucket="bucket", Key=key, Body=content)
    return found


def fetched(uri):
    return fetched_model.fetch(uri, sleep=lambda _: None)


@pytest.fixture
def secret(tmp_path, monkeypatch):
    folder = source_secret.mounted(tmp_path, monkeypatch)
    (folder / "AWS_ACCESS_KEY_ID").write_text("key-of-a-pod\n")
    (folder / "AWS_SECRET_ACCESS_KEY").write_text(f"{SECRET_KEY}\n")
    return folder


@pytest.fixture
def found(bucket, client, secret):
    with file_server.serving(upstream=bucket) as server:
        (secret / "endpoint").write_text(server.url)
        yield server


@pytest.mark.parametrize(("scheme", "prefix"), [("s3", "models/tiny"), ("gs", "models/tiny/")])
def test_a_model_is_what_lies_under_a_prefix(found, scheme, prefix):
    folder = source.resolve(f"{scheme}://bucket/{prefix}")
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name[0] != "."} == {
        "config.json": CONFIG,
        "model.safetensors": WEIGHTS,
    }
    assert source.name_of(f"{scheme}://bucket/{prefix}") == "tiny"


def test_one_gguf_file_is_a_model(found):
    path = source.resolve("s3://bucket/models/tiny.gguf")
    assert (path.name, path.read_bytes()) == ("tiny.gguf", FILES["models/tiny.gguf"])


def test_a_listing_is_a_version_and_its_config_is_read_alone(found, client):
    listed = fetched_model.listing("s3://bucket/models/tiny")
    assert listed.size == len(CONFIG) + len(WEIGHTS)
    assert fetched_model.config(listed) == {"model_type": "llama"}
    assert found.parts("/bucket/models/tiny/model.safetensors") == []
    pinned = model_uri.pinned("s3://bucket/models/tiny", listed.version)
    client.put_object(Bucket="bucket", Key="models/tiny/config.json", Body=b"{}")
    with pytest.raises(ModelUnavailableError, match=r"has changed since its version \w{12} was listed; write"):
        fetched(pinned)
    client.put_object(Bucket="bucket", Key="models/tiny/config.json", Body=CONFIG)
    folder = fetched(pinned)
    found.fault = "busy"
    assert fetched(pinned) == folder == fetched("s3://bucket/models/tiny")


def test_a_file_that_is_gone_from_the_cache_is_fetched_again_or_named(found, secret):
    pinned = model_uri.pinned("s3://bucket/models/tiny", fetched_model.listing("s3://bucket/models/tiny").version)
    folder = fetched(pinned)
    (folder / "model.safetensors").unlink()
    asked = len(found.parts("/bucket/models/tiny/config.json"))
    assert fetched(pinned) == folder
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert len(found.parts("/bucket/models/tiny/config.json")) == asked, "only that file is fetched"
    (folder / "model.safetensors").unlink()
    (secret / "offline").write_text("true")
    says = (
        f"model s3://bucket/models/tiny lacks model.safetensors in the cache, {folder}; it is fetched when its source"
        " is reached: no source is asked for model s3://bucket/models/tiny, as key offline of the Secret"
    )
    for uri in (pinned, "s3://bucket/models/tiny"):
        with pytest.raises(ModelUnavailableError, match=re.escape(says)):
            fetched(uri)


def test_an_object_that_changes_meanwhile_is_not_mixed(found, client):
    listed = fetched_model.listing("s3://bucket/models/tiny")
    (weights,) = [file for file in listed.files if file.name == "model.safetensors"]
    client.put_object(Bucket="bucket", Key="models/tiny/model.safetensors", Body=WEIGHTS[::-1])
    with (
        pytest.raises(ModelUnavailableError, match="has changed while it was fetched; write models"),
        weights.opened(0),
    ):
        pass
    client.put_object(Bucket="bucket", Key="models/tiny/model.safetensors", Body=WEIGHTS)


@pytest.mark.parametrize("fault", ["cut once", "damaged once", "busy once"])
def test_a_transfer_that_breaks_is_mended(found, fault):
    found.fault = fault
    folder = fetched("s3://bucket/models/tiny")
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    if fault == "cut once":
        parts = found.parts("/bucket/models/tiny/model.safetensors")
        assert parts == ["", f"bytes={len(WEIGHTS) // 2}-"]


def test_parts_of_an_upload_are_compared(found, client):
    content = bytes(5 * 2**20) + WEIGHTS
    key = {"Bucket": "bucket", "Key": "models/parts/model.safetensors"}
    upload = client.create_multipart_upload(**key)["UploadId"]
    done = []
    for number, piece in enumerate((content[: 5 * 2**20], content[5 * 2**20 :]), 1):
        part = client.upload_part(**key, UploadId=upload, PartNumber=number, Body=piece)
        done.append({"PartNumber": number, "ETag": part["ETag"]})
    client.complete_multipart_upload(**key, UploadId=upload, MultipartUpload={"Parts": done})
    (file,) = fetched_model.listing("s3://bucket/models/parts").files
    stated = file.checksum()
    assert stated.part_bytes == 5 * 2**20
    assert (source.resolve("s3://bucket/models/parts") / "model.safetensors").read_bytes() == content


LISTED = """<?xml version="1.0" encoding="UTF-8"?><ListBucketResult><Name>bucket</Name><IsTruncated>false</IsTruncated>
<Contents><Key>a/config.json</Key><Size>{size}</Size><ETag>&quot;{etag}&quot;</ETag></Contents></ListBucketResult>"""


@pytest.mark.parametrize("etag", ["not-a-sum", f"{'0' * 32}-x", f"{'0' * 32}-2", f"{'G' * 32}", "1-", "-"])
def test_an_etag_that_is_no_checksum_states_nothing(secret, etag):
    """Of a server of another make, which knows no parts of objects either."""
    files = {
        "/bucket?list-type=2&prefix=a%2F&encoding-type=url": LISTED.format(size=len(CONFIG), etag=etag).encode(),
        "/bucket/a/config.json": CONFIG,
    }
    with file_server.serving(files) as server:
        (secret / "endpoint").write_text(server.url)
        assert (fetched("s3://bucket/a") / "config.json").read_bytes() == CONFIG


def test_a_sha256_that_was_stored_is_compared(found, client):
    client.put_object(Bucket="bucket", Key="models/sum/config.json", Body=CONFIG, ChecksumAlgorithm="SHA256")
    (file,) = fetched_model.listing("s3://bucket/models/sum").files
    stated = file.checksum()
    assert (stated.algorithm, stated.value) == ("sha256", hashlib.sha256(CONFIG).hexdigest())


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (
            "unauthorized",
            "is not given: the bucket refuses access (401): put AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        ),
        ("refused", "is not given: the bucket refuses access (403): put AWS_ACCESS_KEY_ID"),
        ("damaged always", "comes with another checksum of model.safetensors than was stated, fetched twice"),
        ("dead", f"; {source_secret.REACH}"),
    ],
)
def test_what_cannot_be_had_is_one_line_with_what_to_do(found, fault, says):
    found.fault = fault
    with pytest.raises(ModelUnavailableError) as refused:
        fetched("s3://bucket/models/tiny")
    said = str(refused.value)
    assert said.startswith("ModelUnavailable: model s3://bucket/models/tiny ")
    assert says in said
    assert SECRET_KEY not in said


def test_keys_that_the_bucket_does_not_know_are_refused(found, bucket):
    """With a real check of signatures and policies."""
    with (
        s3_api.keys_checked(bucket),
        pytest.raises(ModelUnavailableError, match=r"refuses access \(InvalidAccessKeyId\)"),
    ):
        fetched("s3://bucket/models/tiny")


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("s3://none/models/tiny", rf"there is no bucket none for model s3://none/models/tiny \(NoSuchBucket\){API}"),
        ("s3://bucket/models/none", "there is no file of a model under s3://bucket/models/none"),
        ("s3://bucket/models/none.gguf", "there is no file of a model under s3://bucket/models/none.gguf"),
    ],
)
def test_what_is_not_there_is_named(found, uri, says):
    with pytest.raises(ModelUnavailableError, match=says):
        fetched(uri)


def test_an_endpoint_that_is_no_s3_api_is_named(secret):
    with file_server.serving() as server:
        (secret / "endpoint").write_text(server.url)
        with pytest.raises(ModelUnavailableError, match=rf"there is no bucket b .*\(404\){API}"):
            fetched("s3://b/models/tiny")


def test_a_proxy_of_the_secret_is_used_but_for_what_no_proxy_names(bucket, client, secret, monkeypatch):
    (secret / "endpoint").write_text("http://127.0.0.2:9")
    with file_server.serving(upstream=bucket) as proxy:
        (secret / "proxy").write_text(proxy.url.replace("//", "//me:a%2Fb@"))
        assert (fetched("s3://bucket/models/tiny") / "config.json").read_bytes() == CONFIG
        assert {path.partition("/bucket")[0] for _, path, *_ in proxy.asked} == {"http://127.0.0.2:9"}
        assert proxy.proxied == {f"Basic {base64.b64encode(b'me:a/b').decode()}"}
    (secret / "endpoint").write_text(bucket)
    with pytest.raises(ModelUnavailableError, match=source_secret.REACH):
        fetched("s3://bucket/models/tiny.gguf")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert fetched("s3://bucket/models/tiny.gguf").is_dir()


def test_certificates_of_the_secret_are_trusted(bucket, client, secret):
    with file_server.serving(upstream=bucket, tls=secret) as server:
        (secret / "endpoint").write_text(server.url)
        assert fetched("s3://bucket/models/tiny").is_dir()
        (secret / "ca.crt").unlink()
        with pytest.raises(
            ModelUnavailableError, match=r"cannot be reached: .*certificate.*the keys endpoint, proxy and"
        ):
            fetched("s3://bucket/models/tiny.gguf")


def test_a_uri_without_a_bucket_is_refused(secret):
    with pytest.raises(ModelError, match="model s3:///a is not of the form s3://BUCKET/PREFIX"):
        source.resolve("s3:///a")


def test_a_bucket_that_is_not_reached_is_no_crash(secret):
    (secret / "endpoint").write_text("http://127.0.0.1:9")
    with pytest.raises(
        ModelUnavailableError, match=f"model s3://bucket/a cannot be reached: .*; {source_secret.REACH}"
    ):
        fetched("s3://bucket/a")
