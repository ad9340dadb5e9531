"""Archives that are unpacked while they come: what is read of a growing file, and when what was made of it counts."""

import threading
import time
from pathlib import Path

import pytest

from kvasir_runtime.fetch.unpacking_ahead import ComingArchive, unpacked_ahead

CONTENT = bytes(range(256)) * 100


class Taken:
    """What is made of an archive: its bytes. half: set when half of them were read, ended: when all were."""

    def __init__(self):
        self.half, self.ended, self.content = threading.Event(), threading.Event(), b""

    def unpack(self, stream):
        self.content = stream.read(len(CONTENT) // 2)
        self.half.set()
        self.content += stream.read()
        self.ended.set()


@pytest.fixture
def taken():
    return Taken()


@pytest.fixture
def archive(tmp_path, taken):
    return ComingArchive(path=tmp_path / "archive", size=len(CONTENT), unpack=taken.unpack)


def test_bytes_are_taken_as_they_come(archive, taken):
    with unpacked_ahead([archive]) as are_unpacked, archive.path.open("wb", buffering=0) as stream:
        stream.write(CONTENT[: len(CONTENT) // 2])
        assert taken.half.wait(100)
        stream.write(CONTENT[len(CONTENT) // 2 :])
        assert are_unpacked()
    assert taken.content == CONTENT


def test_one_that_is_fetched_again_does_not_count(archive, taken):
    archive.path.write_bytes(CONTENT)
    with unpacked_ahead([archive]) as are_unpacked:
        assert taken.ended.wait(100)
        archive.path.unlink()
        archive.path.write_bytes(CONTENT[::-1])  # a file system may give it the number of the other
        assert not are_unpacked()


@pytest.mark.parametrize("again", [b"", CONTENT[:9]])
def test_one_that_begins_again_is_not_waited_for(archive, taken, again):
    archive.path.write_bytes(CONTENT[: len(CONTENT) // 2])
    with unpacked_ahead([archive]) as are_unpacked:
        assert taken.half.wait(100)
        other = archive.path.with_name("other")
        other.write_bytes(again)
        other.replace(archive.path)
        assert not are_unpacked()


@pytest.mark.parametrize("there", [None, CONTENT[:9]])
def test_with_the_download_it_ends(archive, there):
    if there is not None:
        archive.path.write_bytes(there)
    with pytest.raises(OSError, match="the download"), unpacked_ahead([archive]):
        raise OSError("the download")
    assert not [one for one in threading.enumerate() if one.name == "unpacking"]


def test_with_the_download_it_ends_however_much_is_there(tmp_path):
    read = threading.Event()

    def unpack(stream):
        while stream.read(20_000):
            stream.seek(0)
            read.set()

    def fail():
        assert read.wait(100)
        raise OSError("the download")

    (tmp_path / "1").write_bytes(CONTENT)
    archive = ComingArchive(path=tmp_path / "1", size=len(CONTENT), unpack=unpack)
    with pytest.raises(OSError, match="the download"), unpacked_ahead([archive]):
        fail()


def test_each_is_unpacked_behind_those_before_it(tmp_path):
    order = []

    def of(name, size):
        return ComingArchive(path=tmp_path / name, size=size, unpack=lambda stream: order.append(stream.read()))

    with unpacked_ahead([of("1", 1), of("2", 1)]) as are_unpacked:
        (tmp_path / "2").write_bytes(b"b")
        (tmp_path / "1").write_bytes(b"a")
        assert are_unpacked()
    assert order == [b"a", b"b"]


def test_what_cannot_be_unpacked_does_not_count(tmp_path):
    def unpack(stream):
        raise ValueError("no archive")

    (tmp_path / "1").write_bytes(b"a")
    with unpacked_ahead([ComingArchive(path=tmp_path / "1", size=1, unpack=unpack)]) as are_unpacked:
        assert not are_unpacked()
    with unpacked_ahead([]) as are_unpacked:
        assert not are_unpacked()


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_file_that_is_removed_takes_no_disk(archive, taken, is_broken):
    """Another one is fetched or unpacked in its place while the download goes on."""

    def unpack(stream):
        taken.unpack(stream)
        if is_broken:
            raise ValueError("no archive")

    def is_open():
        places = [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        return any(place.name.startswith("archive") for place in places)

    archive.path.write_bytes(CONTENT)
    with unpacked_ahead([ComingArchive(path=archive.path, size=archive.size, unpack=unpack)]) as are_unpacked:
        assert taken.ended.wait(100)
        archive.path.unlink()
        deadline = time.monotonic() + 10
        while is_open():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert not are_unpacked()
