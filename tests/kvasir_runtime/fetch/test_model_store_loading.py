"""A start that loads from archives while they come, in the process that fetches them."""

import hashlib
import random
import struct

import pytest

from fakes.remote_files import URI, VERSION, Entries, Source, model, packed, wait_until
from kvasir_runtime import arriving
from kvasir_runtime.errors import ModelError, ModelUnavailableError
from kvasir_runtime.fetch.arrival import Arrival
from kvasir_runtime.fetch.model_store import ModelStore

NOISE = random.Random(1).randbytes(50_000)
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


def layered(tmp_path, *layers):
    """As of `coming`, of an image of layers, the last of which ends when there is something to load from."""
    begun = []

    class Waiting(Source):
        def pieces(self, start):
            *most, last = super().pieces(start)
            yield from most
            wait_until(lambda: begun)
            yield last

    contents = [packed(entries, "w") for entries in layers]
    sources = [*map(Source, contents[:-1]), Waiting(contents[-1])]
    arrival = Arrival(begun.append)
    store = ModelStore(tmp_path, URI, VERSION, sleep=lambda _: None, arrival=arrival)
    files = [source.file(str(number), archive="tar") for number, source in enumerate(sources)]
    return begun, store.fetched(model(*files)), arrival


@pytest.mark.parametrize(
    "layers",
    [
        (CONFIG, WEIGHTS_FILE | BEHIND),
        (CONFIG | INDEX, {"t/1.safetensors": SHARD}, {"t/2.safetensors": SHARD} | BEHIND),
        (CONFIG, {"t/.wh.model.safetensors": b""} | WEIGHTS_FILE | BEHIND),
    ],
    ids=["weights in the last", "shards in several", "removed before it is there"],
)
def test_a_checkpoint_is_loaded_while_layers_of_an_image_come(tmp_path, layers):
    (view,), folder, _arrival = layered(tmp_path, *layers)
    assert arriving.is_confirmed(view)
    assert arriving.real(view) == folder
    for name in (path.name for path in folder.glob("*.safetensors")):
        assert (view / name).read_bytes() == SHARD


NEWER = {"t/model.safetensors": SHARD[:-1] + b"!"}


@pytest.mark.parametrize(
    "last",
    [
        NEWER,
        CONFIG,
        {"t/config.json": b""},
        {"t/.wh.config.json": b"", "config.json": b"{}", "model.safetensors": SHARD},
        {"t/.wh.model.safetensors": b""},
        {"t/.wh.model.safetensors": b"", **NEWER},
        {"t/.wh..wh..opq": b"", **CONFIG, **NEWER},
        {"t/.wh.extra_config.json": b""},
    ],
    ids=[
        *("weights", "config", "an empty config", "another folder", "weights removed", "weights removed and there"),
        *("all removed and there", "a file removed"),
    ],
)
def test_what_a_later_layer_replaces_or_removes_is_not_served(tmp_path, last):
    extra = {"t/extra_config.json": b"{}"}
    (view,), folder, _arrival = layered(tmp_path, CONFIG | extra | WEIGHTS_FILE, last | BEHIND)
    with pytest.raises(ModelError):
        arriving.confirm(view)
    assert arriving.real(view) == folder


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
