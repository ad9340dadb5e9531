"""A folder whose shards still come: what is known of them before, and that none is read before it is whole."""

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
