"""A cache that several processes share, some of which died: what is removed, what stays, what counts."""

import contextlib
import hashlib
import os
import threading
from errno import EOPNOTSUPP
from pathlib import Path

import pytest
from huggingface_hub.utils import WeakFileLock

from fakes.hub import COMMIT
from kvasir_runtime.errors import ModelUnavailableError
from kvasir_runtime.fetch.model_files import RemoteFile, Transfer
from kvasir_runtime.hub_cache import HubCache, HubFile, HubListing

GOOD, BAD = b"weights" * 100, b"WEIGHTS" * 100
DIGEST = hashlib.sha256(GOOD).hexdigest()
LISTING = HubListing(commit=COMMIT, files=(HubFile(name="model.safetensors", size=len(GOOD), digest=DIGEST),))


@pytest.fixture
def repository(tmp_path):
    found = tmp_path / "models--org--name"
    for folder in (found / "blobs", found / "snapshots" / COMMIT, tmp_path / ".locks" / found.name):
        folder.mkdir(parents=True)
    return found


@pytest.fixture
def cache(tmp_path, repository):
    return HubCache(tmp_path, "org/name", LISTING)


def stored(repository, content):
    """The blob of the weights, and the name in the snapshot that leads to it."""
    blob, name = repository / "blobs" / DIGEST, repository / "snapshots" / COMMIT / "model.safetensors"
    blob.write_bytes(content)
    name.symlink_to(os.path.relpath(blob, name.parent))
    return blob


def lock(repository):
    return WeakFileLock(repository.parent / ".locks" / repository.name / f"{DIGEST}.lock")


def test_what_dead_processes_left_is_removed(cache, repository):
    left = [repository / "blobs" / f"{DIGEST}.{number:08x}.incomplete" for number in range(3)]
    for path in left:
        path.write_bytes(b"x" * 10)
    resumable = repository / "blobs" / f"{DIGEST}.incomplete"
    resumable.write_bytes(b"x" * 5)
    cache.remove_leftovers(sleep=lambda _: None)
    assert [*(repository / "blobs").iterdir()] == [resumable]
    assert cache.held() == 5


def test_what_another_process_fetches_stays_and_counts_once(cache, repository):
    dead, live = (repository / "blobs" / f"{DIGEST}.{name}.incomplete" for name in ("00000000", "11111111"))
    dead.write_bytes(b"x" * 50)
    os.utime(dead, (1, 1))
    live.write_bytes(b"x" * 10)
    with lock(repository):
        cache.remove_leftovers(sleep=lambda _: None)
    assert live.exists()
    assert cache.held() == 10


def test_what_is_still_written_stays_where_everybody_gets_the_lock(cache, repository):
    live = repository / "blobs" / f"{DIGEST}.00000000.incomplete"
    live.write_bytes(b"x" * 10)
    cache.remove_leftovers(sleep=lambda _: live.write_bytes(b"x" * 20))
    assert live.exists()


def test_a_damaged_file_is_removed_and_a_whole_one_is_computed_once(cache, repository):
    blob = stored(repository, BAD)
    assert cache.remove_damaged() == ["model.safetensors"]
    assert not blob.exists()
    assert cache.remove_damaged() == ["model.safetensors"], "a file that is not there is to be fetched"
    (repository / "snapshots" / COMMIT / "model.safetensors").unlink(missing_ok=True)
    stored(repository, GOOD)
    assert cache.remove_damaged() == []
    blob.write_bytes(BAD)
    assert cache.remove_damaged() == []


@pytest.mark.parametrize(("content", "damaged"), [(GOOD, []), (BAD, ["model.safetensors"])])
def test_a_mark_that_cannot_be_written_changes_nothing(cache, repository, content, damaged):
    stored(repository, content)
    (repository / ".checked").write_text("no folder")
    with_mark = repository / ".checked" / DIGEST
    assert cache.remove_damaged() == damaged
    assert not os.path.lexists(with_mark)


def test_a_file_that_cannot_be_read_is_not_removed(cache, repository):
    folder = repository / "snapshots" / COMMIT / "model.safetensors"
    folder.mkdir()
    with pytest.raises(ModelUnavailableError, match=r"its model\.safetensors could not be checked: "):
        cache.remove_damaged()
    assert folder.exists()


def test_a_file_is_compared_alone(cache, repository):
    """Another process repairs it under its lock: this one waits, and finds it whole."""
    blob = stored(repository, BAD)
    found = []
    with lock(repository):
        thread = threading.Thread(target=lambda: found.append(cache.remove_damaged()))
        thread.start()
        blob.write_bytes(GOOD)
    thread.join(60)
    assert found == [[]]
    assert blob.read_bytes() == GOOD


def test_a_file_that_others_put_in_place_of_the_damaged_one_stays(cache, repository):
    """Where locks hold nobody back. A pipe stands for the damaged file: it is read until the other one is there."""
    blob = stored(repository, b"")
    blob.unlink()
    os.mkfifo(blob)
    found = []
    thread = threading.Thread(target=lambda: found.append(cache.remove_damaged()))
    thread.start()
    with blob.open("wb") as stream:
        stream.write(BAD)
        new = blob.with_name("new")
        new.write_bytes(GOOD)
        new.replace(blob)
    thread.join(60)
    assert found == [["model.safetensors"]]
    assert blob.read_bytes() == GOOD
    assert cache.remove_damaged() == []


def test_a_branch_stands_for_the_commit(cache, repository):
    for revision in ("main", "refs/pr/1", "../../../outside", COMMIT):
        cache.remember(revision)
    assert (repository / "refs/main").read_text() == (repository / "refs/refs/pr/1").read_text() == COMMIT
    assert sorted(path.name for path in (repository / "refs").rglob("*") if path.is_file()) == ["1", "main"]


def weights(asked, *contents):
    """The file of the listing, whose contents are sent one after the other; asked: from where on each was."""
    left = list(contents)

    @contextlib.contextmanager
    def opened(offset):
        asked.append(offset)
        yield Transfer(start=offset, pieces=iter([left.pop(0)[offset:]]))

    (file,) = LISTING.files
    return RemoteFile(name=file.name, size=file.size, opened=opened, checksum=file.checksum)


@pytest.mark.parametrize(("contents", "asked"), [([GOOD], [0]), ([BAD, GOOD], [0, 0])])
def test_what_is_fetched_was_compared_before_it_is_there(cache, repository, contents, asked):
    starts = []
    cache.fetch([weights(starts, *contents)])
    assert cache.path("model.safetensors").read_bytes() == GOOD
    assert starts == asked
    assert cache.remove_damaged() == []
    assert [path.name for path in (repository / "blobs").iterdir()] == [DIGEST]


def test_a_wrong_checksum_twice_leaves_nothing(cache, repository):
    with pytest.raises(ModelUnavailableError, match=r"another checksum of model\.safetensors than was stated"):
        cache.fetch([weights([], BAD, BAD)])
    assert not cache.path("model.safetensors").exists()
    assert [*(repository / "blobs").iterdir()] == []


def test_a_blob_of_another_commit_is_linked_and_not_fetched(cache, repository):
    (repository / "blobs" / DIGEST).write_bytes(GOOD)
    (repository / ".checked").mkdir()
    (repository / ".checked" / DIGEST).touch()
    assert cache.remove_damaged() == ["model.safetensors"], "this commit has no name for it"
    starts = []
    cache.fetch([weights(starts)])
    assert (cache.path("model.safetensors").read_bytes(), starts) == (GOOD, [])


def test_a_file_system_without_links_has_the_file_itself(cache, monkeypatch):
    def refused(*_, **__):
        raise OSError(EOPNOTSUPP, "no links here")

    monkeypatch.setattr(Path, "symlink_to", refused)
    cache.fetch([weights([], GOOD)])
    assert cache.path("model.safetensors").read_bytes() == GOOD
    assert cache.remove_damaged() == []
