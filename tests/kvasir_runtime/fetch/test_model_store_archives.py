"""Archives in a folder of fetched models: unpacked while they come, one over the other, and nothing of a wrong one."""

import hashlib
import os
import random
import threading

import pytest

from fakes.remote_files import URI, VERSION, WEIGHTS, Source, model, packed, wait_until, zipped
from kvasir_runtime.errors import ModelUnavailableError
from kvasir_runtime.fetch import model_store
from kvasir_runtime.fetch.model_store import ModelStore


@pytest.fixture
def store(tmp_path):
    return ModelStore(tmp_path, URI, VERSION, sleep=lambda _: None)


ENTRIES = {"./tiny/config.json": b"{}", "./tiny/model.safetensors": WEIGHTS, "./tiny/run.py": b"", "./tiny/a.bin": b""}


@pytest.mark.parametrize(
    ("content", "archive"),
    [(packed(ENTRIES), "tar"), (packed(ENTRIES, "w"), "tar"), (zipped(ENTRIES), "zip")],
    ids=["tar.gz", "tar", "zip"],
)
def test_of_an_archive_only_what_serving_needs_is_unpacked(store, content, archive):
    folder = store.fetched(model(Source(content).file("tiny.tar.gz", archive=archive)))
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert store.whole() == folder


@pytest.mark.parametrize("name", ["../config.json", "/config.json", "a/../../config.json"])
def test_an_archive_that_leads_out_of_the_folder_is_refused(store, tmp_path, name):
    with pytest.raises(ModelUnavailableError, match="leads out of the model's folder"):
        store.fetched(model(Source(packed({name: b"{}"})).file("a.tar", archive="tar")))
    assert not (tmp_path / "config.json").exists()


def test_links_in_an_archive_are_not_followed(store):
    folder = store.fetched(model(Source(packed({"config.json": b"{}", "tokenizer.json": None})).file(archive="tar")))
    assert not os.path.lexists(folder / "tokenizer.json")


def test_layers_are_unpacked_in_the_order_of_the_manifest(store):
    """Though the last one is there first."""
    sent = threading.Event()

    class Last(Source):
        def pieces(self, start):
            yield from super().pieces(start)
            sent.set()

    class First(Source):
        def pieces(self, start):
            assert sent.wait(100)
            yield from super().pieces(start)

    own = Source(b"[]").file("own.json")
    first = First(packed({"config.json": b"old", "gone.json": b"{}", "own.json": b"{}", "model.safetensors": WEIGHTS}))
    last = Last(packed({"config.json": b"new", ".wh.gone.json": b"", ".wh.own.json": b""}))
    folder = store.fetched(model(first.file("1", archive="tar"), own, last.file("2", archive="tar")))
    kept = {path.name: path.read_bytes() for path in folder.iterdir() if path.name[0] != "."}
    assert kept == {"config.json": b"new", "model.safetensors": WEIGHTS, "own.json": b"[]"}


NOISE = random.Random(1).randbytes(50_000)


def is_unpacked(folder, name):
    return any(path.stat().st_size == len(NOISE) for path in folder.rglob(name))


@pytest.mark.parametrize("kind", ["w", "w:gz", "w:xz"])
def test_an_archive_is_unpacked_while_it_comes(store, tmp_path, kind):
    class Waiting(Source):
        def pieces(self, start):
            *most, last = super().pieces(start)
            yield from most
            wait_until(lambda: is_unpacked(tmp_path, "model.safetensors"))
            assert store.whole() is None
            yield last

    entries = {"tiny/config.json": b"{}", "tiny/model.safetensors": NOISE, "tiny/unused.bin": NOISE[::-1]}
    folder = store.fetched(model(Waiting(packed(entries, kind)).file("tiny.tar", archive="tar")))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        "config.json": b"{}",
        "model.safetensors": NOISE,
    }
    assert not (store.entry / ".partial").exists()


@pytest.mark.parametrize("cut", [0, 55])
def test_nothing_is_left_of_an_archive_with_another_checksum(store, tmp_path, cut):
    """It was unpacked before it was known to be wrong. cut: pieces that came of it, if not all."""
    right, wrong = ({"config.json": b"{}", name: NOISE} for name in ("a.safetensors", "b.safetensors"))

    class Mended(Source):
        def pieces(self, start):
            if len(self.starts) > 1:
                self.content = packed(right, "w")
            for number, piece in enumerate(super().pieces(start)):
                if len(self.starts) == 1 and number == 54:
                    wait_until(lambda: is_unpacked(tmp_path, "b.safetensors"))
                yield piece

    source = Mended(packed(wrong, "w"), [cut] if cut else [], stated=hashlib.sha256(packed(right, "w")).hexdigest())
    folder = store.fetched(model(source.file("tiny.tar", archive="tar")))
    assert {path.name for path in folder.iterdir() if path.name[0] != "."} == {"config.json", "a.safetensors"}


def test_layers_of_which_a_dead_process_unpacked_some_are_gone_on_with(store):
    layers = [Source(packed({name: b"{}"})) for name in ("config.json", "other.json")]
    files = [source.file(str(number), archive="tar") for number, source in enumerate(layers)]
    partial = store.entry / ".partial"
    partial.mkdir(parents=True)
    (store.entry / "config.json").write_bytes(b"{}")
    (partial / f"{hashlib.sha256(b'0').hexdigest()[:16]}.unpacked").touch()
    folder = store.fetched(model(*files))
    assert [source.starts for source in layers] == [[], [0]]
    assert {path.name for path in folder.iterdir() if path.name[0] != "."} == {"config.json", "other.json"}


def test_what_was_unpacked_ahead_takes_no_disk_of_the_next_try(store, monkeypatch):
    """Of a process that died, or after an error."""
    left = store.entry / "tiny" / "model.safetensors"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"of a process that died")
    monkeypatch.setattr(model_store, "check_space", lambda *_: seen.append(left.exists()))
    seen = []

    class Failing(Source):
        def pieces(self, start):
            wait_until(left.exists)
            yield b""
            raise OSError("the network")

    first = Source(packed({"tiny/config.json": b"{}", "tiny/model.safetensors": NOISE}))
    files = first.file("1", archive="tar"), Failing().file("2", archive="tar")
    with pytest.raises(ModelUnavailableError, match="the network"):
        store.fetched(model(*files))
    assert seen[0] is False
    assert not left.exists()


@pytest.mark.parametrize("archive", ["tar", "zip"])
def test_what_is_no_archive_is_named(store, archive):
    with pytest.raises(ModelUnavailableError, match=r"tiny\.tar cannot be unpacked: "):
        store.fetched(model(Source(b"<html>" * 999).file("tiny.tar", archive=archive)))


def test_what_replaces_a_model_that_lost_a_file_is_not_used_before_all_is_there(store, monkeypatch):
    """Others may still use the other files."""
    folder = store.fetched(model(Source(packed(ENTRIES)).file("tiny.tar", archive="tar")))
    (folder / "config.json").unlink()
    with pytest.raises(ModelUnavailableError):
        store.fetched(model(Source(packed(ENTRIES), stated="0" * 64).file("tiny.tar", archive="tar")))
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert store.lost() == "tiny/config.json"
    unpack, seen = model_store.unpack, []

    class Watched(Source):
        def pieces(self, start):
            yield from super().pieces(start)
            assert (folder / "model.safetensors").read_bytes() == WEIGHTS

    def unpacked(*given):
        unpack(*given)
        seen.append(((folder / "config.json").exists(), store.whole()))

    monkeypatch.setattr(model_store, "unpack", unpacked)
    assert store.fetched(model(Watched(packed(ENTRIES)).file("tiny.tar", archive="tar"))) == folder
    assert seen == [(True, None)]
    assert store.whole() == folder


def test_a_file_that_was_lost_comes_though_its_archive_was_unpacked(store):
    """By a process that died when all was there."""
    file = Source(packed(ENTRIES)).file("tiny.tar", archive="tar")
    folder = store.fetched(model(file))
    (store.entry / ".partial").mkdir()
    (store.entry / ".partial" / f"{hashlib.sha256(b'tiny.tar').hexdigest()[:16]}.unpacked").touch()
    (folder / "config.json").unlink()
    assert store.fetched(model(file)) == folder
    assert (folder / "config.json").read_bytes() == b"{}"


def test_a_file_that_was_lost_takes_no_more_disk_than_the_model(store, monkeypatch):
    file = Source(packed(ENTRIES)).file("tiny.tar", archive="tar")
    folder = store.fetched(model(file))
    (folder / "config.json").unlink()
    seen = []
    monkeypatch.setattr(model_store, "check_space", lambda *given: seen.append(given[2]))
    store.fetched(model(file))
    assert seen[0] == 3 * file.size - len(WEIGHTS)
