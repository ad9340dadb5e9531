"""Archives of a web server that fails: over HTTPS with a certificate of an own authority, as a pod would fetch them."""

import gzip
import hashlib
import io
import tarfile

import pytest

from fakes import checkpoints, file_server, ggufs, source_secret
from fakes.file_server import LARGE, TOKEN
from kvasir_api import names
from kvasir_runtime import gguf, source
from kvasir_runtime.errors import ModelError, ModelUnavailableError
from kvasir_runtime.fetch import cache_limit, fetched_model

WEIGHTS = bytes(range(256)) * 800


def packed(weights=WEIGHTS):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in (("tiny/config.json", b"{}"), ("tiny/model.safetensors", weights)):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


ARCHIVE = packed()
DIGEST = hashlib.sha256(ARCHIVE).hexdigest()
PATH = "/models/tiny.tar"


def fetched(uri):
    return fetched_model.fetch(uri, sleep=lambda _: None)


@pytest.fixture
def secret(tmp_path, monkeypatch):
    return source_secret.mounted(tmp_path, monkeypatch)


@pytest.fixture
def found(secret):
    with file_server.serving({PATH: ARCHIVE}, tls=secret) as server:
        yield server


def uri(server, path=PATH, digest=DIGEST):
    return f"{server.url}{path}#sha256={digest}"


def test_an_archive_is_fetched_once_and_unpacked(found):
    told = []
    folder = source.resolve(uri(found), "", lambda *bytes_: told.append(bytes_))
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert (told[0], told[-1]) == ((0, len(ARCHIVE)), (len(ARCHIVE), len(ARCHIVE)))
    found.fault = "busy"
    assert fetched(uri(found)) == folder


def test_what_an_archive_holds_counts_for_the_limit_of_the_cache(found, tmp_path, monkeypatch):
    monkeypatch.setenv(names.ENV_MODEL_CACHE_BYTES, str(2**20))
    content = gzip.compress(packed(bytes(2**23)))
    found.files["/large.tar.gz"] = content
    with pytest.raises(ModelUnavailableError, match=r"the model takes 8 MiB more of the node's cache"):
        fetched(uri(found, "/large.tar.gz", hashlib.sha256(content).hexdigest()))
    assert cache_limit.size(tmp_path / "models") < 2**20
    assert not list(tmp_path.glob("models/**/config.json"))


def test_the_header_of_a_gguf_file_is_its_config(found, tmp_path):
    path = ggufs.write(checkpoints.write(tmp_path / "source", checkpoints.Shape()), tmp_path / "m.gguf", kind="Q8_0")
    content = found.files["/m.gguf"] = path.read_bytes()
    listed = fetched_model.listing(uri(found, "/m.gguf", hashlib.sha256(content).hexdigest()))
    assert fetched_model.config(listed) == gguf.config_with_bits(gguf.read(path))


def test_one_gguf_file_is_a_model(found):
    content = b"GGUF" + bytes(LARGE)
    found.files["/tiny-Q4.gguf"] = content
    path = source.resolve(uri(found, "/tiny-Q4.gguf", hashlib.sha256(content).hexdigest()))
    assert (path.name, path.read_bytes()) == ("tiny-Q4.gguf", content)
    assert source.name_of(uri(found, "/tiny-Q4.gguf")) == "tiny-Q4"
    assert source.name_of(uri(found)) == "tiny"


@pytest.mark.parametrize("fault", ["cut once", "cut always", "busy once"])
def test_a_broken_connection_goes_on_where_it_was(found, fault):
    found.fault = fault
    folder = fetched(uri(found))
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    if fault != "busy once":
        assert f"bytes={(len(ARCHIVE) + 1) // 2}-" in found.parts(PATH)


def test_a_server_that_knows_no_parts_sends_all(found):
    found.fault = "no parts"
    assert (fetched(uri(found)) / "model.safetensors").read_bytes() == WEIGHTS


def test_a_token_is_for_its_server_alone(found, secret, tmp_path):
    (secret / "token").write_text(f"{TOKEN}\n")
    own = tmp_path / "elsewhere"
    own.mkdir()
    with file_server.serving({PATH: ARCHIVE}, tls=own) as store:
        trusted = (secret / "ca.crt").read_bytes() + (own / "ca.crt").read_bytes()
        (secret / "ca.crt").write_bytes(trusted)
        found.fault, found.elsewhere = "elsewhere", store.url
        fetched(uri(found))
        assert {key for *_, key in found.asked} == {f"Bearer {TOKEN}"}
        assert store.asked
        assert {key for *_, key in store.asked} == {""}
        store.fault = "refused"
        with pytest.raises(
            ModelUnavailableError,
            match=r"to which it redirects, refuses access \(403\); credentials are not sent there: name",
        ):
            fetched(uri(found, digest="0" * 64))


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("unauthorized", "refuses access (401); put a token that may read it under the key token into the Secret of"),
        ("refused", "refuses access (403); put a token"),
        ("absent", "does not have it (404); check the address"),
        ("busy", f"; {source_secret.REACH}"),
        ("dead", f"; {source_secret.REACH}"),
        ("truncated", "could not be fetched: tiny.tar: it is shorter than it was before; put the whole file there"),
        ("damaged always", "comes with another checksum of tiny.tar than was stated, fetched twice"),
        (
            "unprotected",
            "to http://127.0.0.1:9, where the connection is not protected; it is not followed: use an https:// address",
        ),
        ("circle", "is redirected more than 5 times; use an address that has the file"),
        ("no length", "the server does not state how long the file is; have it send a Content-Length"),
    ],
)
def test_what_cannot_be_had_is_one_line_with_what_to_do(found, secret, fault, says):
    (secret / "token").write_text(TOKEN)
    found.fault = fault
    with pytest.raises(ModelUnavailableError) as refused:
        fetched(uri(found))
    said = str(refused.value)
    assert said.startswith(f"ModelUnavailable: model {found.url}{PATH}")
    assert says in said
    assert "\n" not in said
    assert TOKEN not in said


def test_a_damaged_transfer_is_tried_again(found):
    found.fault = "damaged once"
    assert (fetched(uri(found)) / "model.safetensors").read_bytes() == WEIGHTS


def test_a_certificate_that_is_not_trusted_is_named(found, secret):
    (secret / "ca.crt").unlink()
    with pytest.raises(ModelUnavailableError, match=r"cannot be reached: .*[Cc]ertificate"):
        fetched(uri(found))
    (secret / "ca.crt").write_text("nothing")
    with pytest.raises(
        ModelUnavailableError, match=r"key ca\.crt of the Secret of spec\.model\.secretName has no cert"
    ):
        fetched(uri(found))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("https://h/a.tar", "has no checksum: append #sha256="),
        ("https://h/a.tar#sha256=12", "has no checksum"),
        (
            f"https://h/a.bin#sha256={DIGEST}",
            "none of the files that can be served: .tar, .tar.gz, .tgz, .tar.zst, .zip, .gguf",
        ),
        (f"https://h/a.tar?key={TOKEN}#sha256={DIGEST}", "has no query and no password"),
        (f"https://me:{TOKEN}@h/a.tar#sha256={DIGEST}", "has no query and no password"),
    ],
)
def test_a_uri_that_is_refused(secret, given, says):
    with pytest.raises(ModelError) as refused:
        source.resolve(given)
    assert says in str(refused.value)
    assert TOKEN not in str(refused.value)


def test_a_revision_is_for_the_hub():
    with pytest.raises(ModelError, match="--revision v1 is for models on the hub"):
        source.resolve("s3://bucket/a", "v1")


def test_its_config_is_read_when_it_was_fetched(found):
    listed = fetched_model.listing(uri(found))
    assert (listed.version, listed.size) == (DIGEST, len(ARCHIVE))
    with pytest.raises(ValueError, match="is read when a replica has fetched it"):
        fetched_model.config(listed)
