"""Archives in a folder of fetched models: unpacked while they come, one over the other, and nothing of a wrong one."""

import hashlib
import os
import random
import struct
import threading
import time

import pytest

from fakes.remote_files import URI, VERSION, WEIGHTS, Source, model, packed, zipped
from kvasir_runtime import arriving
from kvasir_runtime.errors import ModelError, ModelUnavailableError
from kvasir_runtime.fetch import model_store
from kvasir_runtime.fetch.arrival import Arrival
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


def wait_until(is_so):
    deadline = time.monotonic() + 100
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


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


SHARD = struct.pack("<Q", 2) + b"{}" + NOISE
CONFIG, WEIGHTS_FILE, BEHIND = {"t/config.json": b"{}"}, {"t/model.safetensors": SHARD}, {"t/unused.bin": NOISE}
INDEX = {"t/model.safetensors.index.json": b'{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}'}
SHARDS = {"t/1.safetensors": SHARD, "t/2.safetensors": SHARD}
LATER = {"t/tokenizer.json": b"[]"}


def coming(tmp_path, entries, kind="w", **wishes):
    """What a start is given to load from while an archive comes, which goes with the last value, and the folder with
    the model. before: called before the last piece, once there is something to load from."""
    begun, before = [], wishes.pop("before", None)

    class Waiting(Source):
        def pieces(self, start):
            *most, last = super().pieces(start)
            yield from most
            if before is not None:
                wait_until(lambda: begun)
                before(begun[0])
            yield last

    source = Waiting(packed(entries, kind), **wishes)
    arrival = Arrival(begun.append)
    store = ModelStore(tmp_path, URI, VERSION, sleep=lambda _: None, arrival=arrival)
    return begun, store.fetched(model(source.file("tiny.tar", archive="tar"))), arrival


@pytest.mark.parametrize("kind", ["w", "w:gz"])
@pytest.mark.parametrize(
    ("first", "shards"), [(CONFIG, WEIGHTS_FILE), (CONFIG | INDEX, SHARDS)], ids=["one file", "with an index"]
)
def test_a_checkpoint_is_loaded_while_its_archive_comes(tmp_path, kind, first, shards):
    names = [name.removeprefix("t/") for name in shards]

    def before(view):
        wait_until(lambda: all(arriving.readable(view / name, len(SHARD)) is not None for name in names))
        for name in names:
            assert arriving.readable(view / name, len(SHARD)).read_bytes() == SHARD
            assert not arriving.is_here(view / name)

    (view,), folder, _arrival = coming(tmp_path, {**first, **shards, **BEHIND}, kind, before=before)
    assert arriving.is_confirmed(view)
    assert {(view / name).resolve() for name in names} == {folder / name for name in names}
    assert arriving.real(view) == folder


@pytest.mark.parametrize(
    ("late", "loads_again"),
    [
        (LATER, False),
        ({"t/chat_template.jinja": b"x", "t/generation_config.json": b"{}"}, False),
        ({"t/1_Pooling/config.json": b"{}"}, True),
        ({"t/sentence_bert_config.json": b"{}"}, True),
        ({"t/2.safetensors": SHARD}, True),
        (CONFIG, True),
        (WEIGHTS_FILE, True),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_files_behind_the_weights_are_read_when_all_is_there(tmp_path, late, loads_again):
    entries = [*(CONFIG | WEIGHTS_FILE | BEHIND).items(), *late.items()]
    (view,), folder, _arrival = coming(tmp_path, Entries(entries), before=lambda _: None)
    assert not arriving.is_confirmed(view), "the API reads all once more"
    for name in (name.removeprefix("t/") for name in late):
        assert (view / name).read_bytes() == (folder / name).read_bytes()
    if loads_again:
        with pytest.raises(ModelError):
            arriving.confirm(view)
    else:
        arriving.confirm(view)


class Entries(dict):
    """Of an archive in which a name may stand twice."""

    def __init__(self, pairs):
        super().__init__(pairs)
        self.pairs = pairs

    def items(self):
        return self.pairs


@pytest.mark.parametrize(
    "entries",
    [
        WEIGHTS_FILE | CONFIG,
        CONFIG | SHARDS | INDEX,
        CONFIG | INDEX | {"t/1.safetensors": SHARD},
        CONFIG | {"t/model.safetensors": b"no header"},
        CONFIG | {"t/other.safetensors": SHARD},
        CONFIG | {"t/x/model.safetensors": SHARD},
    ],
    ids=["config behind", "index behind", "shard missing", "no header", "another name", "another folder"],
)
def test_other_archives_are_waited_for(tmp_path, entries):
    begun, *_ = coming(tmp_path, entries | BEHIND)
    assert begun == []


def test_of_an_archive_with_another_checksum_nothing_is_there(tmp_path):
    begun = []

    class Lie(Source):
        def pieces(self, start):
            *most, last = super().pieces(start)
            yield from most
            wait_until(lambda: begun)
            yield last

    lie = Lie(packed(CONFIG | WEIGHTS_FILE | BEHIND, "w"), stated="0" * 64)
    found = ModelStore(tmp_path, URI, VERSION, arrival=Arrival(begun.append))
    with pytest.raises(ModelUnavailableError, match="fetched twice"):
        found.fetched(model(lie.file("tiny.tar", archive="tar")))
    assert found.whole() is None
    assert not arriving.is_here(begun[0] / "model.safetensors")


def sent_again(tmp_path, wrong, right):
    """What a start is given to load from of a wrong archive, which goes with the last value, and the folder with the
    model of the right one."""
    contents = [packed(entries, "w") for entries in (wrong, right)]
    contents = [content.ljust(max(map(len, contents)), b"\0") for content in contents]
    begun = []

    class Mended(Source):
        def pieces(self, start):
            if len(self.starts) > 1:
                self.content = contents[1]
            *most, last = super().pieces(start)
            yield from most
            wait_until(lambda: begun)
            yield last

    source = Mended(contents[0], stated=hashlib.sha256(contents[1]).hexdigest())
    arrival = Arrival(begun.append)
    store = ModelStore(tmp_path, URI, VERSION, arrival=arrival)
    folder = store.fetched(model(source.file("tiny.tar", archive="tar")))
    return begun[0], folder, arrival


def test_what_was_read_of_an_archive_that_is_sent_again_is_void(tmp_path):
    right = CONFIG | WEIGHTS_FILE | BEHIND
    view, folder, _arrival = sent_again(tmp_path, right | {"t/model.safetensors": SHARD[:-1] + b"!"}, right)
    assert (folder / "model.safetensors").read_bytes() == SHARD
    with pytest.raises(ModelError, match="was fetched again"):
        arriving.confirm(view)


@pytest.mark.parametrize("late", [CONFIG | WEIGHTS_FILE, CONFIG, {"config.json": b"{}"}], ids=["all", "config", "root"])
def test_a_part_of_a_model_that_comes_first_is_not_served_in_its_place(tmp_path, late):
    part = {"t/2_Dense/config.json": b"[]", "t/2_Dense/model.safetensors": SHARD}
    (view,), folder, _arrival = coming(tmp_path, part | BEHIND | late, before=lambda _: None)
    loaded = []

    def load(path):
        loaded.append(path)
        arriving.confirm(path)
        return (path / "config.json").read_bytes()

    assert arriving.loaded(view, load) == b"{}"
    assert loaded == [view, folder]
    assert not arriving.is_confirmed(view)


def test_of_an_archive_that_is_sent_again_shards_may_have_other_names(tmp_path):
    other = {"t/model.safetensors.index.json": b'{"weight_map": {"a": "1.safetensors"}}', "t/1.safetensors": SHARD}
    view, folder, _arrival = sent_again(tmp_path, CONFIG | WEIGHTS_FILE | BEHIND, CONFIG | other | BEHIND)
    with pytest.raises(ModelError, match="was fetched again"):
        arriving.confirm(view)
    arriving.all_awaited(view)
    assert arriving.real(view) == folder
    assert not (folder / "model.safetensors").exists()
