"""A cache that one process fills and others only read: when a model is used, and which records are none."""

import subprocess
import sys
import threading

import msgspec
import pytest

from fakes.cache_reader import NAME, Naps, folder
from kvasir_api import names
from kvasir_runtime import source
from kvasir_runtime.fetch import cache_limit, shared_cache
from kvasir_runtime.fetch.shared_cache import Record, Recorder

LIMIT = {names.ENV_MODEL_CACHE_BYTES: "1000"}
READ = "import sys; from pathlib import Path; from kvasir_runtime.fetch import shared_cache; "
READ += "print(shared_cache.awaited(Path(sys.argv[1]), sys.argv[2], None), flush=True); sys.stdin.read()"


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
