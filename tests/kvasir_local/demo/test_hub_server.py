"""The demo's hub, asked by the library that replicas fetch with."""

import hashlib
import shutil
import urllib.request
from pathlib import Path

import pytest
from huggingface_hub import HfApi, constants, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

from kvasir_local.demo import hub_server

WEIGHTS = b"weights" * 1000
FILES = {"config.json": b"{}", "model.safetensors": WEIGHTS}


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite runs with HF_HUB_OFFLINE=1; the hub of these tests is on loopback."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "model"
    (found / "below").mkdir(parents=True)
    for name, content in FILES.items():
        (found / name).write_bytes(content)
    return found


def test_the_library_lists_and_fetches_what_is_in_the_folder(folder: Path, tmp_path: Path) -> None:
    repository = hub_server.HubRepository.of_folder("org/name", folder)
    with hub_server.serving(repository) as served:
        url = served.url
        for revision in (None, "main", repository.commit):
            found = HfApi(endpoint=url).model_info("org/name", revision=revision, files_metadata=True)
            assert found.sha == repository.commit
            listed = {f.rfilename: (f.size, f.lfs and f.lfs.sha256) for f in found.siblings or ()}
            assert listed["model.safetensors"] == (len(WEIGHTS), hashlib.sha256(WEIGHTS).hexdigest())
            assert listed["config.json"] == (2, None)
        for name, content in FILES.items():
            path = hf_hub_download("org/name", name, endpoint=url, cache_dir=tmp_path / "cache", token=False)
            assert Path(path).read_bytes() == content
        assert served.sent == {name: len(content) for name, content in FILES.items()}


def test_a_file_is_given_from_an_offset_on(folder: Path) -> None:
    with hub_server.serving(hub_server.HubRepository.of_folder("org/name", folder)) as served:
        url = served.url
        asked = urllib.request.Request(
            f"{url}/org/name/resolve/main/model.safetensors", headers={"Range": "bytes=6990-"}
        )
        with urllib.request.urlopen(asked) as answer:
            assert (answer.status, answer.read()) == (206, WEIGHTS[6990:])
            assert answer.headers["Content-Range"] == "bytes 6990-6999/7000"


def test_what_is_not_there_is_said_as_the_hub_does(folder: Path, tmp_path: Path) -> None:
    with hub_server.serving(hub_server.HubRepository.of_folder("org/name", folder)) as served:
        url = served.url
        with pytest.raises(RepositoryNotFoundError):
            HfApi(endpoint=url, token=False).model_info("org/other")
        with pytest.raises(RevisionNotFoundError):
            HfApi(endpoint=url, token=False).model_info("org/name", revision="v9")
        with pytest.raises(EntryNotFoundError):
            hf_hub_download("org/name", "absent.json", endpoint=url, cache_dir=tmp_path / "cache", token=False)


def test_a_commit_is_of_the_content(folder: Path, tmp_path: Path) -> None:
    first = hub_server.HubRepository.of_folder("org/name", folder).commit
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    assert hub_server.HubRepository.of_folder("org/name", other).commit == first
    (other / "config.json").write_bytes(b"[]")
    assert hub_server.HubRepository.of_folder("org/name", other).commit != first
    assert len(first) == 40


@pytest.mark.parametrize(
    ("sent", "commit", "says"),
    [
        (
            {"config.json": 600, "model.safetensors": 7_000_000},
            "a",
            "7 MiB were fetched from the hub; every replica loads commit a",
        ),
        ({"config.json": 600}, "a", "7 MiB are on the claim since an earlier run; every replica loads commit a"),
        ({}, "b", "7 MiB are on the claim since an earlier run; every replica loads commit b; the hub now has a"),
    ],
)
def test_the_outcome_is_what_happened(sent: dict[str, int], commit: str, says: str) -> None:
    found = hub_server.ServedHub(commit="a", sent=sent)
    assert found.outcome({"downloadBytes": 7_000_600, "commit": commit}) == says
