"""A start that loads from an archive which another pod of its node unpacks into a cache."""

import contextlib
import hashlib
import random
import struct
import threading

import pytest

from fakes import cache_reader
from fakes.cache_reader import NAME
from fakes.remote_files import URI, VERSION, Entries, Source, model, packed, wait_until
from kvasir_runtime import arriving
from kvasir_runtime.arriving import Shards
from kvasir_runtime.errors import ModelError, ModelUnavailableError
from kvasir_runtime.fetch import model_store, shared_cache
from kvasir_runtime.fetch.arrival import Arrival
from kvasir_runtime.fetch.model_store import ModelStore
from kvasir_runtime.fetch.shared_cache import RecordedArrival, Recorder

NOISE = random.Random(1).randbytes(50_000)
SHARD = struct.pack("<Q", 2) + b"{}" + NOISE
CONFIG, WEIGHTS, BEHIND = {"t/config.json": b"{}"}, {"t/model.safetensors": SHARD}, {"t/unused.bin": NOISE}
LATER = {"t/tokenizer.json": b"[]"}


class Fetcher:
    """A pod that fetches an archive into a cache, which readers load from; what is behind so many pieces waits."""

    def __init__(self, root, content, pieces=-1):
        self.recorder, self.open, self.folder = Recorder(root, NAME), threading.Event(), None
        self.is_dead = False
        fetcher = self

        class Waiting(Source):
            def pieces(self, start):
                found = [*super().pieces(start)]
                yield from found[:pieces]
                assert fetcher.open.wait(100)
                if fetcher.is_dead:
                    raise OSError("the pod has died")
                yield from found[pieces:]

        self.file = Waiting(content).file("tiny.tar", archive="tar")
        self.store = ModelStore(root, URI, VERSION, arrival=RecordedArrival(self.recorder))
        self.thread = threading.Thread(target=self._fetch)
        self.recorder.progress(1, self.file.size)
        self.thread.start()

    def _fetch(self):
        with contextlib.suppress(ModelUnavailableError):
            self.folder = self.store.fetched(model(self.file))

    def dies(self):
        """Before all of it has come."""
        self.is_dead = True
        self.open.set()
        self.thread.join(100)

    def ends(self):
        """All of it comes, and the record says so."""
        self.open.set()
        self.thread.join(100)
        self.recorder.whole(self.folder)


class Reading:
    """A replica that loads. ends: called once it has begun."""

    def __init__(self, root, ends):
        self.begun = []
        self.arrival = Arrival(self.begun.append)
        self._naps, self._ends = 0, ends
        self.folder = shared_cache.awaited(root, NAME, None, self._nap, self.arrival)

    def _nap(self, _):
        if self.begun and self._ends is not None:
            ends, self._ends = self._ends, None
            ends(self.begun[0])
        self._naps += 1
        assert self._naps < 10_000
        threading.Event().wait(0.01)


def test_a_replica_loads_an_archive_that_another_pod_unpacks(tmp_path):
    fetcher = Fetcher(tmp_path, packed(CONFIG | WEIGHTS | BEHIND, "w"))

    def ends(view):
        shard = view / "model.safetensors"
        wait_until(lambda: arriving.readable(shard, len(SHARD)) is not None)
        assert arriving.readable(shard, len(SHARD)).read_bytes() == SHARD
        assert not arriving.is_here(shard)
        fetcher.ends()

    reading = Reading(tmp_path, ends)
    (view,) = reading.begun
    assert arriving.is_confirmed(view)
    assert reading.folder == fetcher.folder == arriving.real(view)
    assert (view / "model.safetensors").read_bytes() == SHARD


@pytest.mark.parametrize(
    ("late", "loads_again"), [(LATER, False), (CONFIG, True), (WEIGHTS, True), ({"config.json": b"{}"}, True)]
)
def test_a_replica_knows_what_came_behind_the_weights(tmp_path, late, loads_again):
    first = CONFIG | WEIGHTS
    content = packed(Entries([*first.items(), *BEHIND.items(), *late.items()]), "w")
    fetcher = Fetcher(tmp_path, content, sum(map(len, first.values())) // 1000 + 3)
    reading = Reading(tmp_path, lambda _: fetcher.ends())
    (view,) = reading.begun
    assert not arriving.is_confirmed(view)
    assert arriving.real(view) == reading.folder == fetcher.folder
    if loads_again:
        with pytest.raises(ModelError):
            arriving.confirm(view)
    else:
        arriving.confirm(view)
        assert (view / "tokenizer.json").read_bytes() == b"[]"


def test_a_file_that_is_half_unpacked_when_a_replica_comes_is_not_shown(tmp_path):
    fetcher = Fetcher(tmp_path, packed(CONFIG | WEIGHTS | {"t/tokenizer.json": NOISE}, "w"))
    there = fetcher.store.entry / "t"
    wait_until((there / "tokenizer.json").exists)

    def ends(view):
        assert sorted(path.name for path in view.iterdir() if path.name[0] != ".") == [
            "config.json",
            "model.safetensors",
        ]
        fetcher.ends()

    reading = Reading(tmp_path, ends)
    assert (reading.begun[0] / "tokenizer.json").read_bytes() == NOISE


@pytest.mark.parametrize("is_second_first", [True, False])
def test_a_second_pod_that_records_the_model_does_not_hide_that_it_is_void(tmp_path, is_second_first):
    """Of the same node: it has fetched nothing, and its record may be the one that a replica reads."""
    late = Entries([*(CONFIG | WEIGHTS | BEHIND).items(), *CONFIG.items()])
    fetcher = Fetcher(tmp_path, packed(late, "w"))

    def ends(_):
        if is_second_first:
            fetcher.recorder = Recorder(tmp_path, NAME)
        fetcher.ends()
        Recorder(tmp_path, NAME).whole(fetcher.folder)

    reading = Reading(tmp_path, ends)
    with pytest.raises(ModelError):
        arriving.confirm(reading.begun[0])


def test_what_a_replica_has_read_of_a_pod_that_died_is_void(tmp_path):
    """Another pod unpacks the archive once more, of which the first one had other bytes."""
    wrong = packed(CONFIG | {"t/model.safetensors": SHARD[:-1] + b"!"} | BEHIND, "w")
    dead, right = Fetcher(tmp_path, wrong), packed(CONFIG | WEIGHTS | BEHIND, "w")

    def ends(view):
        wait_until(lambda: arriving.readable(view / "model.safetensors", len(SHARD)) is not None)
        dead.dies()
        Fetcher(tmp_path, right).ends()

    reading = Reading(tmp_path, ends)
    assert (reading.folder / "model.safetensors").read_bytes() == SHARD
    with pytest.raises(ModelError):
        arriving.confirm(reading.begun[0])


def test_without_a_word_on_what_came_late_all_is_void(tmp_path):
    """As of a disk that is full by then."""
    fetcher = Fetcher(tmp_path, packed(CONFIG | WEIGHTS | BEHIND, "w"))
    wait_until(fetcher.store.entry.exists)
    (fetcher.store.entry / ".late").mkdir()
    reading = Reading(tmp_path, lambda _: fetcher.ends())
    with pytest.raises(ModelError):
        arriving.confirm(reading.begun[0])
    assert arriving.real(reading.begun[0]) == fetcher.folder


def test_no_replica_begins_while_an_archive_is_unpacked_a_second_time(tmp_path, monkeypatch):
    """The first bytes of it had another checksum."""
    right = packed(CONFIG | WEIGHTS | BEHIND, "w")
    wrong = packed(CONFIG | {"t/model.safetensors": SHARD[:-1] + b"!"} | BEHIND, "w")
    recorder, expected, seen = Recorder(tmp_path, NAME), lambda: [*tmp_path.glob(".records/*.shards")], []
    unpack = model_store.unpack

    class Mended(Source):
        def pieces(self, start):
            if len(self.starts) == 1:
                *most, last = super().pieces(start)
                yield from most
                wait_until(expected)
                yield last
            else:
                self.content = right
                yield from super().pieces(start)

    def unpacked(*given):
        unpack(*given)
        recorder.progress(len(seen) + 2, len(right))
        seen.append(expected())

    source = Mended(wrong, stated=hashlib.sha256(right).hexdigest())
    monkeypatch.setattr(model_store, "unpack", unpacked)
    store = ModelStore(tmp_path, URI, VERSION, sleep=lambda _: None, arrival=RecordedArrival(recorder))
    folder = store.fetched(model(source.file("tiny.tar", archive="tar")))
    assert (folder / "model.safetensors").read_bytes() == SHARD
    assert seen[-1] == []


def test_a_replica_does_not_begin_without_a_file_that_was_there(tmp_path):
    folder, recorder, begun = cache_reader.folder(tmp_path), Recorder(tmp_path, NAME), []
    shard, name = folder / "model.safetensors", "model.safetensors"
    shard.write_bytes(SHARD)
    recorder.progress(1, 2)
    rest = ["config.json", "tokenizer.json"]
    recorder.expect(
        folder, Shards(headers={name: SHARD[:10]}, sizes={name: len(SHARD)}, partials={name: name}, rest=rest)
    )

    def comes():
        assert begun == []
        (folder / "tokenizer.json").write_text("[]")

    naps = cache_reader.Naps(comes, lambda: recorder.whole(folder))
    arrival = Arrival(begun.append)
    assert shared_cache.awaited(tmp_path, NAME, None, naps, arrival) == folder
    assert (begun[0] / "tokenizer.json").read_text() == "[]"
