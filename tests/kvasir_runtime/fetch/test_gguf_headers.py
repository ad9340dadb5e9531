"""Headers of GGUF files over a connection: they state what the whole file states, and no weights are fetched."""

import contextlib
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes import checkpoints, ggufs
from kvasir_runtime import gguf
from kvasir_runtime.errors import ModelUnavailableError
from kvasir_runtime.fetch import gguf_headers
from kvasir_runtime.fetch.model_files import BrokenTransferError, RemoteFile, Transfer

PIECE = 1 << 20
SHAPE = checkpoints.Shape(hidden_size=512, num_layers=4, head_dim=64, intermediate_size=1024, vocab_size=300)


class Remote:
    """Content that counts the bytes which are read of it."""

    def __init__(self, content: bytes, name: str = "models/m.gguf", *, breaks: bool = False) -> None:
        self.content, self.breaks, self.read = content, breaks, 0
        self.file = RemoteFile(name=name, size=len(content), opened=self._opened, checksum=lambda: None)

    @contextlib.contextmanager
    def _opened(self, offset: int) -> Iterator[Transfer]:
        yield Transfer(start=offset, pieces=self._pieces(offset))

    def _pieces(self, offset: int) -> Iterator[bytes]:
        if self.breaks:
            raise BrokenTransferError("the connection was reset")
        for at in range(offset, len(self.content), PIECE):
            self.read += len(self.content[at : at + PIECE])
            yield self.content[at : at + PIECE]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    return ggufs.write(checkpoints.write(folder / "source", SHAPE), folder / "m.gguf", kind="Q8_0")


def with_long_vocabulary(content: bytes, num_bytes: int) -> bytes:
    """A file with one more key, a text of about so many bytes: what follows stays aligned."""
    num_bytes += 1  # of the entry all but the text has 31
    magic, version, tensors, keys = struct.unpack_from("<4sIQQ", content)
    key = b"kvasir.note"
    entry = struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 8, num_bytes) + b"n" * num_bytes
    return struct.pack("<4sIQQ", magic, version, tensors, keys + 1) + entry + content[24:]


def test_the_config_is_that_of_the_whole_file(written):
    remote = Remote(written.read_bytes())
    assert len(remote.content) > 4 * PIECE
    assert gguf_headers.config([remote.file]) == gguf.config_with_bits(gguf.read(written))
    assert remote.read == PIECE


def test_a_long_header_is_read_to_its_end(written):
    remote = Remote(with_long_vocabulary(written.read_bytes(), 3 * PIECE))
    assert gguf_headers.config([remote.file])["hidden_size"] == 512
    assert remote.read == 4 * PIECE


def test_a_model_in_parts_is_read_of_all(written, tmp_path):
    parts = ggufs.split(Path(shutil.copy(written, tmp_path)), 2)
    remotes = [Remote(path.read_bytes(), path.name) for path in parts]
    assert gguf_headers.config([one.file for one in remotes]) == gguf.config_with_bits(gguf.read(written))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"PK\x03\x04" + bytes(2 * PIECE), "m.gguf is not a GGUF file: it does not begin with GGUF"),
        (b"GGUF", "m.gguf is truncated or damaged: it ends before the end of its header"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 9) + bytes(9), "m.gguf is truncated or damaged"),
    ],
)
def test_what_is_no_model_is_refused_in_one_line(content, says):
    with pytest.raises(ValueError, match=r"m\.gguf") as caught:
        gguf_headers.config([Remote(content).file])
    assert str(caught.value).startswith(says)


def test_a_header_without_an_end_is_given_up():
    remote = Remote(b"GGUF" + struct.pack("<IQQ", 3, 1, 2**40) + bytes(66 * PIECE))
    with pytest.raises(ValueError, match=r"m\.gguf has a header of more than 67,108,864 bytes"):
        gguf_headers.config([remote.file])
    assert remote.read == 64 * PIECE


def test_a_connection_that_breaks_is_said(written):
    with pytest.raises(ModelUnavailableError, match=r"the header of models/m\.gguf cannot be read: the connection was"):
        gguf_headers.config([Remote(written.read_bytes(), breaks=True).file])
