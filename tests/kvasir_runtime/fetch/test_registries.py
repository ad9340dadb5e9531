"""Models in a registry: artifacts, images and indexes, by tag and digest, with sign-in and without."""

import base64
import gzip
import hashlib
import io
import json
import tarfile

import pytest

from fakes import file_server, source_secret
from fakes.file_server import TOKEN, USER
from kvasir_api import model_uri, names
from kvasir_runtime import source
from kvasir_runtime.errors import ModelError, ModelUnavailableError
from kvasir_runtime.fetch import fetched_model
from kvasir_runtime.fetch.unpacking import zstd

NAME = "org/name"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
WEIGHTS = bytes(range(256)) * 800
CONFIG = b'{"model_type": "llama"}'
RAW = "application/octet-stream"


def fetched(uri):
    return fetched_model.fetch(uri, sleep=lambda _: None)


@pytest.fixture
def secret(tmp_path, monkeypatch):
    return source_secret.mounted(tmp_path, monkeypatch)


@pytest.fixture
def found(secret):
    with file_server.serving() as server:
        yield server


def artifact(server, **files):
    """Push files as ORAS does. Returns the manifest's digest."""
    layers = [
        server.layer(NAME, content, RAW, org_opencontainers_image_title=name.replace("__", "."))
        for name, content in (files or {"config__json": CONFIG, "model__safetensors": WEIGHTS}).items()
    ]
    return server.push(NAME, "v1", {"schemaVersion": 2, "mediaType": MANIFEST, "layers": layers})


def uri(server, reference=":v1"):
    return f"oci://{server.url.removeprefix('http://')}/{NAME}{reference}"


def packed(**files):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"models/{name.replace('__', '.')}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def test_an_artifact_is_its_files(found):
    digest = artifact(found, config__json=CONFIG, model__safetensors=WEIGHTS, README__md=b"#")
    listed = fetched_model.listing(uri(found))
    assert (f"sha256:{listed.version}", listed.size) == (digest, len(CONFIG) + len(WEIGHTS))
    assert fetched_model.config(listed) == {"model_type": "llama"}
    folder = fetched(uri(found))
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name[0] != "."} == {
        "config.json": CONFIG,
        "model.safetensors": WEIGHTS,
    }
    assert source.name_of(uri(found)) == "name"


def test_a_digest_stays_where_the_tag_moves(found):
    digest = artifact(found)
    before = fetched(uri(found))
    artifact(found, config__json=CONFIG, model__safetensors=WEIGHTS[::-1])
    assert fetched(model_uri.pinned(uri(found), digest.removeprefix("sha256:"))) == before
    assert fetched(uri(found)) != before
    found.fault = "busy"
    assert fetched(uri(found)) != before, "the last one, where the registry is not reached"


def test_a_pod_that_is_offline_has_the_last_one_and_asks_nothing(found, secret):
    digest = artifact(found)
    folder, asked = fetched(uri(found)), len(found.asked)
    (secret / "offline").write_text("true")
    assert fetched(uri(found)) == fetched(model_uri.pinned(uri(found), digest.removeprefix("sha256:"))) == folder
    assert len(found.asked) == asked


@pytest.mark.parametrize(("kind", "compress"), [("gzip", gzip.compress), ("zstd", zstd.compress)])
def test_an_image_holds_the_model_in_a_directory(found, kind, compress):
    tar = f"application/vnd.oci.image.layer.v1.tar+{kind}"
    layers = [
        found.layer(NAME, compress(packed(config__json=CONFIG)), tar),
        found.layer(NAME, compress(packed(model__safetensors=WEIGHTS, run__py=b"")), tar),
    ]
    image = found.push(NAME, "image", {"schemaVersion": 2, "layers": layers})
    of_windows = {"digest": f"sha256:{'0' * 64}", "platform": {"os": "windows"}}
    listed = [of_windows, {"digest": image, "platform": {"os": "linux", "architecture": "arm64"}}]
    index = found.push(NAME, "v1", {"schemaVersion": 2, "manifests": listed})
    assert f"sha256:{fetched_model.listing(uri(found)).version}" == index
    folder = fetched(uri(found))
    assert folder.name == "models"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        "config.json": CONFIG,
        "model.safetensors": WEIGHTS,
    }


def test_files_of_model_pack_and_a_packed_directory(found):
    layers = [
        found.layer(NAME, WEIGHTS, "application/vnd.cncf.model.weight.v1.raw", org_cncf_model_filepath="a/x.json"),
        found.layer(
            NAME,
            gzip.compress(packed(config__json=CONFIG)),
            RAW,
            org_opencontainers_image_title="models",
            io_deis_oras_content_unpack="true",
        ),
        found.layer(NAME, b"GGUF", "application/vnd.docker.ai.gguf.v3"),
    ]
    found.push(NAME, "v1", {"schemaVersion": 2, "layers": layers})
    folder = fetched(uri(found))
    assert (folder / "config.json").read_bytes() == CONFIG
    assert (folder.parent / "a/x.json").read_bytes() == WEIGHTS
    assert (folder.parent / "model.gguf").read_bytes() == b"GGUF"


@pytest.mark.parametrize("form", ["auth", "username"])
def test_a_registry_that_wants_a_sign_in_gets_it(found, secret, form):
    found.challenge = True
    digest = artifact(found)
    user, password = base64.b64decode(USER).decode().split(":")
    entry = {"auth": USER} if form == "auth" else {"username": user, "password": password}
    host = found.url.removeprefix("http://")
    (secret / ".dockerconfigjson").write_text(json.dumps({"auths": {host: entry}}))
    assert f"sha256:{fetched_model.listing(uri(found)).version}" == digest
    assert fetched(uri(found)).is_dir()


def test_outside_of_pods_a_helper_of_docker_signs_in(found, secret, tmp_path, monkeypatch):
    found.challenge = True
    artifact(found)
    monkeypatch.delenv(names.ENV_SOURCE_SETTINGS)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (tmp_path / "config.json").write_text(json.dumps({"credsStore": "fake"}))
    with pytest.raises(
        ModelUnavailableError, match=r"refuses access .*; docker-credential-fake cannot be run: .*; sign in"
    ):
        fetched(uri(found))
    helper = tmp_path / "docker-credential-fake"
    user, password = base64.b64decode(USER).decode().split(":")
    helper.write_text(f"#!/bin/sh\necho '{json.dumps({'Username': user, 'Secret': password})}'\n")
    helper.chmod(0o755)
    assert fetched(uri(found)).is_dir()


def test_where_a_registry_redirects_no_sign_in_is_made(found, secret):
    artifact(found)
    host = found.url.removeprefix("http://")
    (secret / ".dockerconfigjson").write_text(json.dumps({"auths": {host: {"auth": USER}}}))
    with file_server.serving(found.files, challenge=True) as store:
        found.fault, found.elsewhere = "elsewhere", store.url
        with pytest.raises(ModelUnavailableError, match=r"refuses access \(401\)"):
            fetched(uri(found))
        assert {(path.partition("/")[0], key) for _, path, _, key in store.asked} == {("", "")}
        assert not [path for _, path, *_ in store.asked if path.startswith("/token")]


def test_layers_that_are_equal_are_fetched_once(found):
    tar = "application/vnd.oci.image.layer.v1.tar+gzip"
    first = found.layer(NAME, gzip.compress(packed(config__json=CONFIG, model__safetensors=WEIGHTS)), tar)
    second = found.layer(NAME, gzip.compress(packed(config__json=b"{}")), tar)
    found.push(NAME, "v1", {"schemaVersion": 2, "layers": [first, second, first]})
    folder = fetched(uri(found))
    assert (folder / "config.json").read_bytes() == CONFIG
    assert len(found.parts(f"/v2/{NAME}/blobs/{first['digest']}")) == 1


def test_two_layers_of_one_name_are_refused(found):
    named = {"org_opencontainers_image_title": "config.json"}
    layers = [found.layer(NAME, content, RAW, **named) for content in (CONFIG, b"{}")]
    found.push(NAME, "v1", {"schemaVersion": 2, "layers": layers})
    with pytest.raises(ModelUnavailableError, match=r"two of its layers have the name 'config\.json'"):
        fetched(uri(found))


@pytest.mark.parametrize("fault", ["cut once", "cut always", "damaged once", "busy once", "no parts"])
def test_a_transfer_that_breaks_is_mended(found, fault):
    artifact(found)
    found.fault = fault
    if fault == "busy once":
        found.seen["GET", f"/v2/{NAME}/manifests/v1"] = found.times
    folder = fetched(uri(found))
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("unauthorized", "refuses access (401); put a key .dockerconfigjson for it into the Secret of spec.model"),
        ("refused", "refuses access (403); put a key .dockerconfigjson"),
        ("absent", "it has no v1 (404); name a tag or a digest that it has"),
        ("busy", f"; {source_secret.REACH}"),
        ("dead", f"; {source_secret.REACH}"),
        ("truncated", "model.safetensors: it is shorter than its manifest states; push the model again"),
        ("damaged always", "comes with another checksum of model.safetensors than was stated"),
        ("circle", "is redirected more than 5 times; use an address that has the file"),
    ],
)
def test_what_cannot_be_had_is_one_line_with_what_to_do(found, fault, says):
    artifact(found)
    found.fault = fault
    with pytest.raises(ModelUnavailableError) as refused:
        fetched(uri(found))
    assert str(refused.value).startswith(f"ModelUnavailable: model {uri(found)} ")
    assert says in str(refused.value)


def test_a_wrong_password_is_not_shown(found, secret):
    found.challenge = True
    artifact(found)
    host = found.url.removeprefix("http://")
    (secret / ".dockerconfigjson").write_text(json.dumps({"auths": {host: {"auth": TOKEN}}}))
    with pytest.raises(ModelUnavailableError, match=r"refuses access \(401\)") as refused:
        fetched(uri(found))
    assert TOKEN not in str(refused.value)


@pytest.mark.parametrize(
    ("manifest", "says"),
    [
        ([], "its manifest is no JSON object"),
        ({"layers": 3}, "its manifest has no layers"),
        ({"layers": [{"digest": "../..", "size": 3}]}, "a layer has digest '../..' and size 3"),
        ({"layers": [{"digest": f"sha256:{'0' * 64}", "size": "x"}]}, "size 'x'"),
        ({"layers": []}, "there is no file of a model under oci://"),
        ({"manifests": []}, "its index names no manifest"),
        (
            {"layers": [{"digest": f"sha256:{'0' * 64}", "size": 1, "mediaType": "x.raw+zstd"}]},
            "a layer is one file that is compressed with zstd; push it as it is, or as a tar archive",
        ),
        (
            {
                "layers": [
                    {
                        "digest": f"sha256:{'0' * 64}",
                        "size": 1,
                        "annotations": {"org.opencontainers.image.title": "../config.json"},
                    }
                ]
            },
            "'../config.json' is no path in a model's folder",
        ),
    ],
)
def test_a_manifest_that_is_refused(found, manifest, says):
    found.push(NAME, "v1", manifest)
    with pytest.raises(ModelUnavailableError) as refused:
        fetched(uri(found))
    assert says in str(refused.value)


def test_a_manifest_of_another_digest_is_refused(found):
    artifact(found)
    wanted = hashlib.sha256(b"").hexdigest()
    found.files[f"/v2/{NAME}/manifests/sha256:{wanted}"] = found.files[f"/v2/{NAME}/manifests/v1"]
    with pytest.raises(ModelUnavailableError, match="its manifest has the digest sha256:"):
        fetched(uri(found, f"@sha256:{wanted}"))


def test_a_mirror_stands_for_a_registry(found, secret):
    artifact(found)
    (secret / "endpoint").write_text(found.url)
    assert source.resolve(f"oci://registry.example/{NAME}:v1").is_dir()


@pytest.mark.parametrize("given", ["oci://host", "oci://host/Name", "oci://host/a b", "oci:///a", "oci://host/a:"])
def test_a_uri_that_is_refused(secret, given):
    with pytest.raises(ModelError, match="is not of the form oci://HOST/REPOSITORY:TAG"):
        source.resolve(given)
