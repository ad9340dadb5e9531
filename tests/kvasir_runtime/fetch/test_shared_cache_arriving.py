"""A start that loads from a cache while another process fills it: what it may read, and what it waits for."""

import contextlib
import hashlib
import os
import struct
import tempfile
import threading
from functools import partial
from pathlib import Path

import msgspec
import pytest

from fakes.cache_reader import NAME, Naps, folder
from kvasir_api import names
from kvasir_runtime import arriving
from kvasir_runtime.arriving import Shards
from kvasir_runtime.errors import ModelError, ModelUnavailableError
from kvasir_runtime.fetch import cache_limit, shared_cache
from kvasir_runtime.fetch.arrival import Arrival
from kvasir_runtime.fetch.model_files import Checksum, RemoteFile, RemoteModel, Transfer
from kvasir_runtime.fetch.model_store import ModelStore
from kvasir_runtime.fetch.shared_cache import ExpectedShards, RecordedArrival, Recorder

LIMIT = {names.ENV_MODEL_CACHE_BYTES: "1000"}
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


@pytest.mark.parametrize("is_again", [False, True], ids=["one file", "a file that is fetched again"])
def test_a_start_reads_a_file_while_another_process_fetches_it(tmp_path, is_again):
    filled = folder(tmp_path)
    (partial_ := filled / "partial").write_bytes(SHARD[:100])
    one = {FIRST: HEADER}
    shards = Shards(headers=one, sizes={FIRST: len(SHARD)}, partials={FIRST: "partial"})
    recorder, _ = begins(tmp_path, shards)
    reader, there = Reader(tmp_path), []

    def look():
        there.append([end for end in (100, 200) if arriving.readable(reader.begun[0] / FIRST, end)])

    def grows():
        look()
        with partial_.open("ab") as stream:
            stream.write(SHARD[100:])
        look()
        if is_again:
            partial_.unlink()
            partial_.write_bytes(SHARD)
            look()
        partial_.replace(filled / FIRST)

    assert reader.waits(grows, lambda: recorder.whole(filled)) == filled
    assert there == [[100], [100, 200], *([[]] if is_again else [])]
    with pytest.raises(ModelError, match="fetched again") if is_again else contextlib.nullcontext():
        arriving.confirm(reader.begun[0])


def test_a_start_loads_the_gguf_file_of_a_folder(tmp_path):
    filled = tmp_path / "bucket-tiny-1"
    filled.mkdir()
    names_ = {"headers": {"tiny.gguf": b"GGUF"}, "sizes": {"tiny.gguf": 8}, "first": "tiny.gguf"}
    recorder, reader = Recorder(tmp_path, NAME), Reader(tmp_path)
    recorder.progress(0, 8)
    recorder.expect(filled, Shards(**names_))

    def comes():
        (filled / "tiny.gguf").write_bytes(b"GGUF1234")

    assert reader.waits(comes, lambda: recorder.whole(filled / "tiny.gguf")) == filled / "tiny.gguf"
    assert reader.begun[0].read_bytes() == b"GGUF1234"


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


def expects(**fields):
    shards = Shards(headers={FIRST: HEADER}, sizes={FIRST: 3000}, **fields)
    return msgspec.msgpack.encode(ExpectedShards(path="bucket-tiny-1", shards=shards))


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
        expects(partials={FIRST: "../../outside/config.json"}),
        expects(first="../tiny.gguf"),
    ],
    ids=[
        *("empty", "cut", "out of the cache", "removed", "no config", "a path", "no shard", "a folder", "no size"),
        *("bytes out of the cache", "a file out of the folder"),
    ],
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
