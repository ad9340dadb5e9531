"""A folder of fetched models: broken connections go on, wrong content is not used, processes wait for one another."""

import hashlib
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fakes import checkpoints, ggufs
from fakes.remote_files import URI, VERSION, WEIGHTS, Source, model
from kvasir_runtime import arriving, gguf
from kvasir_runtime.errors import ModelError, ModelUnavailableError
from kvasir_runtime.fetch.arrival import Arrival
from kvasir_runtime.fetch.model_store import ModelStore


@pytest.fixture
def waits():
    return []


@pytest.fixture
def store(tmp_path, waits):
    return ModelStore(tmp_path, URI, VERSION, sleep=waits.append)


def test_a_model_is_there_once_it_is_whole(store, tmp_path):
    assert store.whole() is None
    config = Source(b"{}")
    folder = store.fetched(model(config.file("config.json"), Source().file(), Source(b"[]").file("a/b.json")))
    assert store.whole() == folder
    assert folder.parent == tmp_path
    assert folder.name.startswith("s3-bucket-models-tiny-")
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert (folder / "a/b.json").read_bytes() == b"[]"
    store.fetched(model(config.file("config.json")))
    assert config.starts == [0]
    assert ModelStore(tmp_path, URI, "b" * 64).whole() is None


def test_a_broken_connection_goes_on_where_it_was(store, waits):
    source = Source(breaks=[30, 0, 0, 5])
    store.fetched(model(source.file()))
    assert source.starts == [0, 30_000, 30_000, 30_000, 35_000]
    assert waits == [0.5, 1.0, 2.0, 0.5]


def test_a_process_goes_on_with_what_a_dead_one_left(store, tmp_path):
    with pytest.raises(ModelUnavailableError, match=r"model\.safetensors: the connection was reset"):
        store.fetched(model(Source(breaks=[30] + [0] * 9).file()))
    source = Source()
    folder = ModelStore(tmp_path, URI, VERSION).fetched(model(source.file()))
    assert source.starts == [30_000]
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS


def test_a_source_that_knows_no_parts_sends_all_again(store):
    source = Source(breaks=[30, 20], knows_parts=False)
    folder = store.fetched(model(source.file()))
    assert source.starts == [0, 0, 0]
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS


def test_a_source_that_is_not_reached_is_given_up(store, waits):
    with pytest.raises(ModelUnavailableError, match="model s3://bucket/models/tiny could not be fetched"):
        store.fetched(model(Source(breaks=[0] * 9).file()))
    assert waits == [1.0, 2.0, 4.0, 8.0]
    assert store.whole() is None


def test_a_truncated_file_is_no_model(store):
    with pytest.raises(ModelUnavailableError, match=r"model\.safetensors: it ended after 102400 of 102500 bytes"):
        store.fetched(model(Source().file(size=len(WEIGHTS) + 100)))
    assert store.whole() is None


def test_a_file_that_is_too_long_is_no_model(store):
    with pytest.raises(ModelUnavailableError, match="another checksum"):
        store.fetched(model(Source().file(size=5000)))


def test_a_wrong_checksum_is_fetched_again_once(store):
    source = Source(stated="f" * 64)
    with pytest.raises(
        ModelUnavailableError, match=r"comes with another checksum of model\.safetensors than was stated"
    ):
        store.fetched(model(source.file()))
    assert source.starts == [0, 0]
    assert store.whole() is None


def test_what_a_dead_process_left_of_another_content_is_no_obstacle(store, tmp_path):
    with pytest.raises(ModelUnavailableError):
        store.fetched(model(Source(bytes(102_400), breaks=[30] + [0] * 9).file()))
    source = Source()
    folder = ModelStore(tmp_path, URI, VERSION).fetched(model(source.file()))
    assert source.starts == [30_000, 0]
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS


def test_a_disk_without_the_room_is_found_before(store):
    source = Source()
    with pytest.raises(
        ModelUnavailableError, match=r"needs 93132257\.46 GiB of disk in .*, where .* are free; free some there"
    ):
        store.fetched(model(source.file(size=10**17)))
    assert source.starts == []


def test_a_full_disk_is_said_to_be_full(tmp_path):
    """A limit of the size of files stands for it: 50 kB, and the weights have twice as much."""
    code = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
        "from pathlib import Path\n"
        "from test_model_store import Source, model, URI, VERSION\n"
        "from kvasir_runtime.fetch.model_store import ModelStore\n"
        "try:\n    ModelStore(Path(sys.argv[1]), URI, VERSION).fetched(model(Source().file()))\n"
        "except Exception as error:\n    print(error)\n"
    )
    here = Path(__file__).parent
    env = {**os.environ, "PYTHONPATH": f"{here}{os.pathsep}{here.parents[1]}"}
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100, check=True)
    assert "could not be stored: [Errno 27] File too large; give its cache more room" in done.stdout


def test_processes_wait_for_the_one_that_fetches(tmp_path):
    begun, open_ = threading.Event(), threading.Event()

    class Slow(Source):
        def pieces(self, start):
            begun.set()
            assert open_.wait(100)
            yield from super().pieces(start)

    first, second = Slow(), Source()
    told = []
    threads = [
        threading.Thread(target=lambda: ModelStore(tmp_path, URI, VERSION).fetched(model(first.file()))),
        threading.Thread(
            target=lambda: ModelStore(tmp_path, URI, VERSION).fetched(
                model(second.file()), lambda *bytes_: told.append(bytes_)
            )
        ),
    ]
    threads[0].start()
    assert begun.wait(100)
    threads[1].start()
    open_.set()
    for thread in threads:
        thread.join(100)
    assert (len(first.starts), len(second.starts)) == (1, 0)
    assert told[-1] == (len(WEIGHTS), len(WEIGHTS))


SHARD = struct.pack("<Q", 2) + b"{}" + bytes(3000)


def test_a_start_goes_on_when_only_shards_are_missing(tmp_path):
    begun = []
    arrival = Arrival(lambda path: begun.append((path, sorted(one.name for one in path.iterdir() if one.is_symlink()))))
    store = ModelStore(tmp_path, URI, VERSION, arrival=arrival)
    shards = [Source(SHARD).file(f"model-{number}.safetensors") for number in range(3)]
    folder = store.fetched(model(shards[0], Source(b"{}").file("config.json"), *shards[1:]))
    ((view, whole),) = begun
    assert "config.json" in whole
    assert not any(name.startswith("model-") for name in whole), "none was there yet"
    assert {(view / file.name).resolve() for file in shards} == {folder / file.name for file in shards}


@pytest.mark.parametrize(
    "files",
    [
        [Source(b"no header").file("a.safetensors"), Source(SHARD).file("b.safetensors")],
        [Source(SHARD).file(), Source(b"GGUF").file("a.gguf")],
    ],
    ids=["no header", "with a GGUF file"],
)
def test_other_checkpoints_are_waited_for(tmp_path, files):
    begun = []
    store = ModelStore(tmp_path, URI, VERSION, arrival=Arrival(begun.append))
    store.fetched(model(Source(b"{}").file("config.json"), *files))
    assert begun == []


def test_a_start_goes_on_when_weights_of_layers_in_folders_are_there(tmp_path):
    begun = []
    arrival = Arrival(lambda path: begun.append((path / "2_Dense/model.safetensors").read_bytes()))
    files = [Source(SHARD).file(), Source(b"{}").file("config.json"), Source(SHARD).file("2_Dense/model.safetensors")]
    ModelStore(tmp_path, URI, VERSION, arrival=arrival).fetched(model(*files))
    assert begun == [SHARD]


def coming(tmp_path, *sources):
    """A store, the sources' files with a config, and what a start is given to load from while they come."""
    begun = []
    store = ModelStore(tmp_path, URI, VERSION, sleep=lambda _: None, arrival=Arrival(begun.append))
    return store, model(*(source.file(name) for name, source in sources)), begun


def test_a_checkpoint_in_one_file_can_be_read_as_it_comes(tmp_path):
    shard, seen = Source(SHARD), []
    pieces = shard.pieces

    def looked_at(start):
        for piece in pieces(start):
            yield piece
            seen.extend(arriving.readable(view / "model.safetensors", len(SHARD) // 2) for view in begun)

    shard.pieces = looked_at
    store, files, begun = coming(tmp_path, ("config.json", Source(b"{}")), ("model.safetensors", shard))
    folder = store.fetched(files)
    (view,) = begun
    assert seen[0] is None
    assert seen[1] == seen[2] == folder / ".partial" / hashlib.sha256(b"model.safetensors").hexdigest()[:16]
    arriving.confirm(view)
    assert (view / "model.safetensors").resolve() == folder / "model.safetensors"


def test_of_a_file_with_another_checksum_nothing_can_be_read(tmp_path):
    lie = Source(SHARD, stated="0" * 64)
    store, files, begun = coming(tmp_path, ("config.json", Source(b"{}")), ("model.safetensors", lie))
    with pytest.raises(ModelUnavailableError, match="fetched twice"):
        store.fetched(files)
    assert not arriving.is_here(begun[0] / "model.safetensors")
    assert arriving.readable(begun[0] / "model.safetensors", 1) is None


def test_what_was_read_of_a_file_that_is_sent_again_from_its_beginning_is_void(tmp_path):
    source = Source(SHARD, breaks=[-1, 2], knows_parts=False)  # the first one is for the header
    store, files, begun = coming(tmp_path, ("config.json", Source(b"{}")), ("model.safetensors", source))
    assert (store.fetched(files) / "model.safetensors").read_bytes() == SHARD
    assert source.starts == [0, 0, 0]
    with pytest.raises(ModelError, match="was fetched again"):
        arriving.confirm(begun[0])


@pytest.mark.parametrize("num_parts", [1, 3])
def test_a_gguf_model_can_be_loaded_as_it_comes(tmp_path, num_parts):
    whole = ggufs.write(checkpoints.write(tmp_path / "whole"), tmp_path / "tiny.gguf")
    parts = ggufs.split(whole, num_parts) if num_parts > 1 else [whole]
    files, begun = model(*(Source(part.read_bytes()).file(part.name) for part in parts)), []
    arrival = Arrival(lambda path: begun.append((path, gguf.read(path).tensors.keys())))
    folder = ModelStore(tmp_path / "store", URI, VERSION, arrival=arrival).fetched(files)
    ((view, known),) = begun
    assert view.name == parts[0].name
    assert arriving.real(view) == folder / view.name
    assert known == gguf.read(folder / view.name).tensors.keys()


def test_a_download_that_no_start_waits_for_ends(tmp_path):
    arrival = Arrival(lambda _: None)
    arrival.abandon()
    with pytest.raises(ModelUnavailableError, match="the download was abandoned"):
        ModelStore(tmp_path, URI, VERSION, arrival=arrival).fetched(model(Source().file()))
