"""A folder whose shards still come: what is known and read of them before, and that all of it is of one file."""

import threading

import pytest

from kvasir_runtime import arriving
from kvasir_runtime.arriving import ArrivingFolder, Shards
from kvasir_runtime.errors import ModelError

HEADER = b"header: "


@pytest.fixture
def real(tmp_path):
    folder = tmp_path / "real"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def test_a_shard_is_its_header_until_it_is_there(real):
    made = ArrivingFolder(real, Shards(headers={"a": HEADER, "b": HEADER}, sizes={"a": 20, "b": 30}))
    shard = made.path / "a"
    assert (made.path / "config.json").read_text() == "{}"
    assert (arriving.is_here(made.path / "config.json"), arriving.is_here(shard)) == (True, False)
    assert (shard.read_bytes(), arriving.size(shard)) == (HEADER, 20)
    waits = []

    def comes(seconds):
        waits.append(seconds)
        if len(waits) == 2:
            (real / "a").write_bytes(HEADER + b"the rest")
            made.arrived("a")

    assert arriving.awaited(shard, comes).read_bytes() == HEADER + b"the rest"
    assert len(waits) == 2
    assert (arriving.is_here(shard), arriving.size(shard)) == (True, 16)
    assert not arriving.is_here(made.path / "b")


def test_all_are_awaited(real):
    made = ArrivingFolder(real, Shards(headers={"a": HEADER}, sizes={"a": 8}))
    done = threading.Event()
    waiter = threading.Thread(target=lambda: (arriving.all_awaited(made.path), done.set()))
    waiter.start()
    assert not done.is_set()
    (real / "a").write_bytes(HEADER)
    made.arrived("a")
    waiter.join(60)
    assert done.is_set()
    arriving.all_awaited(real)


def test_a_shard_that_begins_otherwise_is_told_to_who_read_its_header(real):
    made = ArrivingFolder(real, Shards(headers={"a": HEADER}, sizes={"a": 8}))
    (real / "a").write_bytes(b"HEADER: ")
    made.arrived("a")
    with pytest.raises(ModelError, match="a was sent with two different beginnings"):
        arriving.awaited(made.path / "a", pytest.fail)
    arriving.all_awaited(made.path)
    assert arriving.awaited(real / "a", pytest.fail) == real / "a"
    made.arrived("config.json")


def coming(real, size=20):
    """A folder with a shard of which nothing has come, and where its bytes come."""
    (partial := real.parent / "a.incomplete").touch()
    shards = Shards(headers={"a": HEADER}, sizes={"a": size}, partials={"a": "../a.incomplete"})
    return ArrivingFolder(real, shards), partial


def test_bytes_are_read_as_they_come_and_stay_those_of_the_file_that_is_whole(real):
    made, partial = coming(real)
    shard, waits, content = made.path / "a", [], HEADER + bytes(12)
    assert arriving.readable(shard, 0) is None
    made.comes("a")
    made.comes("a")
    assert arriving.readable(shard, 0) == partial
    assert arriving.readable(shard, 9) is None

    def grows(_):
        waits.append(1)
        with partial.open("ab") as stream:
            stream.write(content[stream.tell() :][:6])

    with arriving.opened(shard, 10, grows) as stream:
        assert (len(waits), stream.read(10)) == (2, content[:10])
        grows(0)
        grows(0)
        partial.replace(real / "a")
        assert arriving.readable(shard, 20) is None, "a shard is whole from `arrived` on"
        made.arrived("a")
        assert stream.read() == bytes(10)
    assert arriving.readable(shard, 20) == shard
    arriving.confirm(made.path)


def test_of_a_file_that_is_fetched_again_nothing_counts_that_was_read_before(real):
    made, partial = coming(real)
    partial.write_bytes(HEADER + b"a lie")
    made.comes("a")
    asked = []

    def load(folder):
        asked.append(folder)
        with arriving.opened(folder / "a", 13, pytest.fail) as stream:
            found = stream.read()
        if folder != real:
            partial.unlink()
            partial.write_bytes(HEADER + b"truth")
            assert arriving.readable(folder / "a", 1) is None, "it is another file"
            partial.replace(real / "a")
            made.arrived("a")
            arriving.confirm(folder)
        return found

    assert arriving.loaded(made.path, load) == HEADER + b"truth"
    assert asked == [made.path, real]


def test_a_file_in_the_place_of_one_that_is_whole_is_not_read(real):
    """Where a network file system gives two processes one lock."""
    made, partial = coming(real)
    made.comes("a")
    partial.replace(real / "a")
    partial.write_bytes(bytes(30))
    assert arriving.readable(made.path / "a", 1) is None


def test_what_is_not_shown_while_it_comes_is_read_when_it_is_whole(real):
    made, partial = coming(real)
    partial.unlink()
    made.comes("a")
    (real / "a").write_bytes(HEADER)
    made.arrived("a")
    with arriving.opened(made.path / "a", 8, pytest.fail) as stream:
        assert stream.read() == HEADER
    arriving.confirm(made.path)


@pytest.mark.parametrize("is_seen", [True, False])
def test_of_a_file_that_grows_in_its_place_bytes_were_shown_from_the_beginning(real, is_seen):
    """One that was removed before it was opened is of another download, and so is what lies beside it."""
    grows = Shards(headers={"a": HEADER}, sizes={"a": 9}, partials={"a": "a"}, rest=["config.json"])
    (real / "tokenizer.json").write_text("half")
    made = ArrivingFolder(real, grows)
    (real / "a").write_bytes(HEADER)
    if is_seen:
        made.comes("a")
    with (real / "a").open("ab") as stream:
        stream.write(b"1")
    made.arrived("a")
    assert not (made.path / "tokenizer.json").exists()
    assert arriving.is_confirmed(made.path) == is_seen


def test_a_gguf_file_is_loaded_from_the_folder(real):
    made = ArrivingFolder(real, Shards(headers={"a": HEADER}, sizes={"a": 20}, first="a"))
    assert made.path.read_bytes() == HEADER
    assert arriving.real(made.path) == real / "a"
    assert arriving.real(real / "a") == real / "a"


@pytest.mark.parametrize("is_read", [True, False])
def test_what_cannot_be_loaded_is_loaded_again_when_all_is_there(real, is_read):
    """Where a header is damaged on its way, whether it can be read or not."""
    made, asked = ArrivingFolder(real, Shards(headers={"a": b"damaged "}, sizes={"a": 8})), []

    def load(folder):
        asked.append(folder)
        if len(asked) == 1:
            (real / "a").write_bytes(HEADER)
            made.arrived("a")
            if not is_read:
                raise ModelError("a is truncated or damaged")
        return arriving.awaited(folder / "a", pytest.fail).read_bytes()

    assert arriving.loaded(made.path, load) == HEADER
    assert asked == [made.path, real]


def test_what_is_wrong_with_a_whole_model_is_told_at_once(real):
    asked = []

    def load(folder):
        asked.append(folder)
        raise ModelError("it is of no known kind")

    with pytest.raises(ModelError, match="no known kind"):
        arriving.loaded(real, load)
    assert asked == [real]


def test_what_nothing_fetches_any_more_ends_the_wait(real):
    made = [ArrivingFolder(real, Shards(headers={"a": HEADER}, sizes={"a": 8}))]
    shard = made[0].path / "a"
    with pytest.raises(ModelError, match="a is not fetched any more"):
        arriving.awaited(shard, lambda _: made.clear())


def test_an_ordinary_folder_is_whole(real):
    assert arriving.awaited(real / "config.json", pytest.fail) == real / "config.json"
    assert arriving.size(real / "config.json") == 2
    with pytest.raises(OSError, match="No such file"):
        arriving.size(real / "absent")
