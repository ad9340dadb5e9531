"""A cache that one process fills and others only read: when a model is used, and which records are none."""

import contextlib
import hashlib
import os
import struct
import subprocess
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path

import msgspec
import pytest

from kvasir_api import names
from kvasir_runtime import arriving, source
from kvasir_runtime.arriving import Shards
from kvasir_runtime.errors import ModelUnavailableError
from kvasir_runtime.fetch import cache_limit, shared_cache
from kvasir_runtime.fetch.arrival import Arrival
from kvasir_runtime.fetch.model_files import Checksum, RemoteFile, RemoteModel, Transfer
from kvasir_runtime.fetch.model_store import ModelStore
from kvasir_runtime.fetch.shared_cache import ExpectedShards, Record, RecordedArrival, Recorder

LIMIT = {names.ENV_MODEL_CACHE_BYTES: "1000"}
NAME = "s3://bucket/tiny@sha256:" + "a" * 64
READ = "import sys; from pathlib import Path; from kvasir_runtime.fetch import shared_cache; "
READ += "print(shared_cache.awaited(Path(sys.argv[1]), sys.argv[2], None), flush=True); sys.stdin.read()"


class Naps:
    """Runs the next step of what happens meanwhile in place of each pause."""

    def __init__(self, *steps):
        self.steps = list(steps)

    def __call__(self, _):
        assert self.steps, "it waits although the model is there"
        self.steps.pop(0)()


def folder(root, name="bucket-tiny-1"):
    made = root / name
    made.mkdir(exist_ok=True)
    (made / "config.json").write_text("{}")
    return made


def test_a_reader_waits_until_the_model_is_whole_and_is_given_the_bytes(tmp_path):
    recorder, seen = Recorder(tmp_path, NAME), []
    naps = Naps(
        lambda: recorder.progress(0, 10),
        lambda: None,
        lambda: recorder.progress(4, 10),
        lambda: recorder.progress(99, 10),
        lambda: recorder.whole(folder(tmp_path)),
    )
    found = shared_cache.awaited(tmp_path, NAME, lambda *bytes_: seen.append(bytes_), naps)
    assert found == tmp_path / "bucket-tiny-1"
    assert seen == [(0, 10), (4, 10), (9, 10), (10, 10)], "all of them once it has compared them"
    assert naps.steps == []


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"{",
        b"[]",
        b'{"path": 1}',
        msgspec.json.encode(Record(path="../outside")),
        msgspec.json.encode(Record(path="/etc")),
        msgspec.json.encode(Record(path="gone")),
    ],
    ids=["empty", "cut", "no object", "no text", "out of the cache", "absolute", "removed since"],
)
def test_a_record_of_nothing_that_is_there_is_waited_over(tmp_path, record):
    outside = folder(tmp_path, "outside")
    cache = tmp_path / "cache"
    cache.mkdir()
    recorder = Recorder(cache, NAME)
    recorder.progress(0, 1)
    (place,) = (cache / ".records").iterdir()
    place.write_bytes(record)
    assert outside.exists()
    naps = Naps(lambda: recorder.whole(folder(cache)))
    assert shared_cache.awaited(cache, NAME, None, naps) == cache / "bucket-tiny-1"


def test_names_have_records_of_their_own_and_only_of_the_cache(tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    Recorder(cache, "org/other").whole(folder(cache, "other"))
    recorder = Recorder(cache, NAME)
    with pytest.raises(ValueError, match="outside"):
        recorder.whole(folder(tmp_path, "outside"))
    naps = Naps(lambda: recorder.whole(folder(cache)))
    assert shared_cache.awaited(cache, NAME, None, naps).name == "bucket-tiny-1"


def test_a_model_that_a_reader_uses_is_not_removed_and_one_that_was_is_waited_for(tmp_path):
    entry = folder(tmp_path)
    (entry / "model.safetensors").write_bytes(bytes(900))
    (entry / ".used").touch()
    Recorder(tmp_path, NAME).whole(entry)
    command = [sys.executable, "-c", READ, str(tmp_path), NAME]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline().strip() == str(entry)
        with pytest.raises(Exception, match="are in use"):
            cache_limit.make_room(tmp_path / "new", 500, LIMIT)
        reader.communicate()
    cache_limit.make_room(tmp_path / "new", 500, LIMIT)
    assert not entry.exists()
    naps = Naps(lambda: None, lambda: Recorder(tmp_path, NAME).whole(folder(tmp_path)))
    assert shared_cache.awaited(tmp_path, NAME, None, naps) == entry


@pytest.mark.parametrize("name", [NAME, "hf://org/name@" + "c" * 40, "org/name"])
def test_a_start_in_a_cache_that_is_only_read_reaches_no_source(tmp_path, monkeypatch, name):
    monkeypatch.setenv(names.ENV_MODEL_CACHE_READ_ONLY, str(tmp_path))
    writes = threading.Timer(0.01, lambda: Recorder(tmp_path, name).whole(folder(tmp_path)))
    writes.start()
    assert source.resolve(name) == tmp_path / "bucket-tiny-1"
    writes.join()


def test_a_reader_needs_no_right_to_write(tmp_path, monkeypatch):
    file = folder(tmp_path) / "tiny.gguf"
    file.write_bytes(b"GGUF")
    Recorder(tmp_path, NAME).whole(file)
    monkeypatch.setenv(names.ENV_MODEL_CACHE_READ_ONLY, str(tmp_path))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path, *tmp_path.rglob("*"))}
    assert source.resolve(NAME) == file
    assert {path: path.stat().st_mtime_ns for path in (tmp_path, *tmp_path.rglob("*"))} == before


HEADER = struct.pack("<Q", 2) + b"{}"
SHARD = HEADER + bytes(3000)
FIRST, SECOND = "model-1.safetensors", "model-2.safetensors"
EXPECTED = Shards(headers={FIRST: HEADER, SECOND: HEADER}, sizes={FIRST: len(SHARD), SECOND: len(SHARD)})


class Reader:
    """A start that waits for a model in a cache. begun: the folder that it may load from."""

    def __init__(self, root):
        self.root, self.begun, self.seen = root, [], []
        self.arrival = Arrival(self.begun.append)

    def waits(self, *steps):
        return shared_cache.awaited(
            self.root, NAME, lambda *bytes_: self.seen.append(bytes_), Naps(*steps), self.arrival
        )

    def here(self):
        return [name for name in (FIRST, SECOND) if arriving.is_here(self.begun[0] / name)]


def begins(root, expected=EXPECTED):
    """A download of which all but two shards is there."""
    recorder, filled = Recorder(root, NAME), folder(root)
    recorder.progress(10, 6000)
    recorder.expect(filled, expected)
    return recorder, filled


def test_a_start_loads_the_shards_that_are_there_while_others_come(tmp_path):
    recorder, filled = begins(tmp_path)
    reader, there = Reader(tmp_path), []

    def comes(name):
        (filled / name).write_bytes(SHARD)

    def look():
        there.append(reader.here())

    def is_whole():
        look()
        comes(SECOND)
        recorder.progress(6000, 6000)

    whole = reader.waits(look, partial(comes, FIRST), is_whole, look, lambda: recorder.whole(filled))
    assert whole == filled
    assert there == [[], [FIRST], [FIRST, SECOND]]
    (view,) = reader.begun
    assert (view / "config.json").read_text() == "{}"
    assert reader.seen == [(10, 6000), (5999, 6000), (6000, 6000)], "it waits until the record says that all is there"
    assert not list((tmp_path / ".records").glob("*.shards"))


def test_what_a_download_expects_is_told_by_the_process_that_fetches(tmp_path):
    """Its store reads the headers, and a start that comes meanwhile has them from the record."""
    may_go_on, recorder, reader = threading.Event(), Recorder(tmp_path, NAME), Reader(tmp_path)

    def opened(content, offset):
        def pieces():
            yield content[offset : offset + 100]  # of a shard the header is here
            assert content[0] == ord("{") or may_go_on.wait(100)
            yield content[offset + 100 :]

        return contextlib.nullcontext(Transfer(start=offset, pieces=pieces()))

    def file(name, content):
        stated = Checksum(algorithm="sha256", value=hashlib.sha256(content).hexdigest())
        return RemoteFile(name=name, size=len(content), opened=partial(opened, content), checksum=lambda: stated)

    files = (file("config.json", b"{}"), file(FIRST, SHARD), file(SECOND, SHARD))
    store = ModelStore(tmp_path, NAME, "a" * 64, arrival=RecordedArrival(recorder))

    def fetches():
        recorder.whole(store.fetched(RemoteModel(uri=NAME, version="a" * 64, files=files), recorder.progress))

    fetching = threading.Thread(target=fetches)
    fetching.start()

    def nap(_):
        if reader.begun:
            assert may_go_on.is_set() or reader.here() == []
            may_go_on.set()
        fetching.join(0.01)

    whole = shared_cache.awaited(tmp_path, NAME, None, nap, reader.arrival)
    fetching.join(100)
    (view,) = reader.begun
    assert may_go_on.is_set(), "it began before a shard was there"
    assert [(view / name).resolve() for name in (FIRST, SECOND)] == [whole / FIRST, whole / SECOND]
    assert (whole / SECOND).read_bytes() == SHARD


def given(path="bucket-tiny-1", **names_):
    return ExpectedShards(path=path, shards=Shards(headers=names_, sizes=dict.fromkeys(names_, 3000)))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x81",
        msgspec.msgpack.encode(given("../outside", **{FIRST: HEADER})),
        msgspec.msgpack.encode(given("gone", **{FIRST: HEADER})),
        msgspec.msgpack.encode(given("bare", **{FIRST: HEADER})),
        msgspec.msgpack.encode(given(**{"../config.safetensors": HEADER})),
        msgspec.msgpack.encode(given(**{"config.json": HEADER})),
        msgspec.msgpack.encode(given(**{"a/b.safetensors": HEADER})),
        msgspec.msgpack.encode(ExpectedShards(path="bucket-tiny-1", shards=Shards(headers={FIRST: b""}, sizes={}))),
    ],
    ids=["empty", "cut", "out of the cache", "removed", "no config", "a path", "no shard", "a folder", "no size"],
)
def test_what_cannot_be_expected_is_waited_for_as_a_whole(tmp_path, content):
    outside, cache = folder(tmp_path, "outside"), tmp_path / "cache"
    (cache / "bare").mkdir(parents=True)
    recorder, filled = begins(cache)
    (place,) = (cache / ".records").glob("*.shards")
    place.write_bytes(content)
    reader = Reader(cache)
    assert reader.waits(lambda: None, lambda: recorder.whole(filled)) == filled
    assert reader.begun == []
    assert [path.name for path in outside.iterdir()] == ["config.json"]


def test_no_start_goes_on_before_bytes_were_reported(tmp_path):
    """By those the operator knows that a replica which loads still needs the pod that fetches."""
    recorder, filled, reader = Recorder(tmp_path, NAME), folder(tmp_path), Reader(tmp_path)
    recorder.expect(filled, EXPECTED)
    assert reader.waits(lambda: None, lambda: recorder.whole(filled)) == filled
    assert reader.begun == []


def test_a_download_that_begins_again_expects_nothing_of_before(tmp_path):
    """Its process died; what has come since then is in no list of those."""
    begins(tmp_path)
    recorder, reader = Recorder(tmp_path, NAME), Reader(tmp_path)
    recorder.progress(0, 6000)
    assert reader.waits(lambda: None, lambda: recorder.whole(folder(tmp_path))) == tmp_path / "bucket-tiny-1"
    assert reader.begun == []


def test_a_start_goes_on_where_the_process_that_fetches_is_another_one(tmp_path):
    _, filled = begins(tmp_path)
    reader = Reader(tmp_path)

    def again():
        recorder = Recorder(tmp_path, NAME)
        for name in (FIRST, SECOND):
            (filled / name).write_bytes(SHARD)
        recorder.whole(filled)

    assert reader.waits(again) == filled
    assert reader.here() == [FIRST, SECOND]


@pytest.mark.parametrize("is_other", [True, False], ids=["another folder", "without a shard"])
def test_a_start_whose_model_has_become_another_one_ends(tmp_path, is_other):
    recorder, filled = begins(tmp_path)
    other = folder(tmp_path, "bucket-tiny-2") if is_other else filled
    if is_other:
        for name in (FIRST, SECOND):
            (filled / name).write_bytes(SHARD)
    with pytest.raises(ModelUnavailableError, match="has become another one while it was fetched and loaded"):
        Reader(tmp_path).waits(lambda: recorder.whole(other))


def test_a_start_that_ends_waits_no_longer(tmp_path):
    begins(tmp_path)
    reader = Reader(tmp_path)
    with pytest.raises(ModelUnavailableError, match="abandoned"):
        reader.waits(reader.arrival.abandon)


def test_a_model_that_a_start_loads_from_is_not_removed(tmp_path):
    _, filled = begins(tmp_path)
    (filled / ".used").touch()
    (filled / FIRST).write_bytes(bytes(900))
    reader = Reader(tmp_path)

    def gives_way():
        with pytest.raises(ModelUnavailableError, match="are in use"):
            cache_limit.make_room(tmp_path / "new", 500, LIMIT)
        reader.arrival.abandon()

    with pytest.raises(ModelUnavailableError, match="abandoned"):
        reader.waits(gives_way)


def test_a_shard_that_cannot_be_read_ends_the_start_with_its_name(tmp_path):
    _, filled = begins(tmp_path)
    with pytest.raises(ModelUnavailableError, match=f"{FIRST} of model .* cannot be loaded while"):
        Reader(tmp_path).waits(lambda: None, (filled / FIRST).mkdir)


def test_a_reader_without_a_place_for_headers_waits_for_all_and_holds_the_folder_once(tmp_path, monkeypatch):
    recorder, filled = begins(tmp_path)
    lock = filled / ".used"
    lock.touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    reader, num_open = Reader(tmp_path), []

    def look():
        num_open.append(sum(path.resolve() == lock for path in Path("/proc/self/fd").iterdir()))

    assert reader.waits(look, look, look, lambda: recorder.whole(filled)) == filled
    assert reader.begun == []
    assert num_open == [1, 1, 1]


def test_records_of_two_pods_are_written_apart(tmp_path):
    """Both have process 1, and services of one model on a node have one record."""
    recorder, filled = begins(tmp_path)
    (record,) = (tmp_path / ".records").glob("*.json")
    for suffix in (".json", ".shards"):
        of_another = record.with_name(f"{record.stem}{suffix}.{os.getpid()}.tmp")
        of_another.write_bytes(b"half of i")
    recorder.expect(filled, EXPECTED)
    recorder.whole(filled)
    assert {path.read_bytes() for path in (tmp_path / ".records").glob("*.tmp")} == {b"half of i"}
    assert shared_cache.awaited(tmp_path, NAME, None, Naps()) == filled


def test_what_a_cache_does_not_take_leaves_nothing_in_it(tmp_path):
    recorder, filled = begins(tmp_path)
    (place,) = (tmp_path / ".records").glob("*.shards")
    place.unlink()
    place.mkdir()
    recorder.expect(filled, EXPECTED)
    assert not list((tmp_path / ".records").glob("*.tmp"))


def test_a_second_pod_that_begins_to_fetch_does_not_end_what_the_first_expects(tmp_path):
    """As of a new revision of a service: it waits for the lock of the folder."""
    recorder, filled = begins(tmp_path)
    Recorder(tmp_path, NAME)
    reader = Reader(tmp_path)

    def all_comes():
        assert len(reader.begun) == 1
        for name in (FIRST, SECOND):
            (filled / name).write_bytes(SHARD)
        recorder.whole(filled)

    assert reader.waits(partial(recorder.progress, 10, 6000), all_comes) == filled
    assert reader.here() == [FIRST, SECOND]
    assert not list((tmp_path / ".records").glob("*.shards"))
