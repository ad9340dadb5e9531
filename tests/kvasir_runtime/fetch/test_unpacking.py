"""Archives over one another: what a layer removes of those below it, and what is left of one that is broken."""

import gzip
import io
import tarfile
import tracemalloc
import zipfile

import pytest

from kvasir_runtime.fetch.unpacking import BrokenArchiveError, unpack, zstd

BELOW = {"config.json": b"1", "a/x.json": b"2", "a/b/y.json": b"3", "model.safetensors": b"4", "own.json": b"5"}
LARGE = bytes(range(256)) * 4000


def packed(entries, kind="w:gz"):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=kind) as archive:
        for name, content in entries.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def zipped(entries, compression):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return stream.getvalue()


@pytest.fixture
def folder(tmp_path):
    """With what the layers below wrote, and a file beside them."""
    made = tmp_path / "model"
    for name, content in BELOW.items():
        path = made / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (made / ".lock").touch()
    return made


def there(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - {".lock"}


def unpacked(folder, content, kind="tar", reserve=lambda _: None):
    archive = folder.parent / "archive"
    archive.write_bytes(content)
    with archive.open("rb") as stream:
        unpack(stream, kind, folder, {"own.json"}, reserve)


@pytest.mark.parametrize(
    ("layer", "gone", "more"),
    [
        ({".wh.config.json": b""}, {"config.json"}, set()),
        ({"./a/.wh.b": b""}, {"a/b/y.json"}, set()),
        ({".wh.a": b"", "a/x.json": b""}, {"a/b/y.json"}, set()),
        ({"a/z.json": b"", "a/.wh..wh..opq": b""}, {"a/x.json", "a/b/y.json"}, {"a/z.json"}),
        ({"a/.wh..wh..opq": b"", "a/z.json": b""}, {"a/x.json", "a/b/y.json"}, {"a/z.json"}),
        ({".wh..wh..opq": b"", "z.json": b""}, set(BELOW) - {"own.json"}, {"z.json"}),
        ({".wh.own.json": b"", "own.json": b"other"}, set(), set()),
        ({".wh.none": b"", ".wh..lock": b"", ".wh..wh.plnk": b""}, set(), set()),
    ],
)
def test_what_a_layer_removes_of_those_below(folder, layer, gone, more):
    unpacked(folder, packed(layer))
    assert there(folder) == set(BELOW) - gone | more
    assert (folder / ".lock").exists()
    assert (folder / "own.json").read_bytes() == BELOW["own.json"]


@pytest.mark.parametrize(
    "name", [".wh...", "../.wh.config.json", ".wh.", "x/.wh.", "a/../../.wh..wh..opq", "/.wh..wh..opq"]
)
def test_a_removal_that_leads_out_of_the_folder_is_refused(folder, name):
    (folder.parent / "config.json").touch()
    with pytest.raises(BrokenArchiveError, match="leads out of the model's folder"):
        unpacked(folder / "a", packed({name: b""}))
    assert (folder.parent / "config.json").exists()
    assert there(folder) - {"archive"} == set(BELOW)


def damaged(content, at):
    return content[:at] + b"\xff" * 64 + content[at + 64 :]


def wide_window(content):
    """A frame that takes a gibibyte of memory to decompress, by its header."""
    compressor = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 30})
    return compressor.compress(content) + compressor.flush()


SKIPPED = bytes.fromhex("502a4d18 03000000 616263")


@pytest.mark.parametrize("before", [b"", SKIPPED], ids=["a frame", "a frame without content first"])
def test_frames_of_zstd_are_one_archive(folder, before):
    """As tools write them that compress in parts, or append a table of contents."""
    plain = packed({"z.json": LARGE, "y.json": bytes(512), "run.py": LARGE, "x.json": b"{}"}, "w")
    half = len(plain) // 2
    unpacked(folder, before + zstd.compress(plain[:half]) + SKIPPED + zstd.compress(plain[half:]) + SKIPPED)
    assert there(folder) == {*BELOW, "z.json", "y.json", "x.json"}
    assert (folder / "z.json").read_bytes() == LARGE
    assert (folder / "x.json").read_bytes() == b"{}"


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (damaged(zipped({"z.json": LARGE}, zipfile.ZIP_DEFLATED), 50), "zip"),
        (damaged(zipped({"z.json": LARGE}, zipfile.ZIP_LZMA), 60), "zip"),
        (damaged(zipped({"z.json": LARGE}, zipfile.ZIP_BZIP2), 60), "zip"),
        (packed({"z.json": b"{}", "y.json": LARGE}, "w:gz")[:-200], "tar"),
        (damaged(packed({"z.json": b"{}", "y.json": LARGE}, "w:xz"), 300), "tar"),
        (damaged(packed({"z.json": b"{}", "y.json": LARGE}, "w:bz2"), 300), "tar"),
        (packed({"z.json": b"{}", "y.json": LARGE}, "w")[:9000], "tar"),
        (zstd.compress(packed({"z.json": b"{}", "y.json": LARGE}, "w"))[:-3], "tar"),
        (damaged(zstd.compress(packed({"z.json": b"{}", "y.json": LARGE}, "w")), 9), "tar"),
        (zstd.compress(packed({"z.json": b"{}", "y.json": LARGE}, "w"))[:4], "tar"),
        (zstd.compress(b""), "tar"),
        (wide_window(packed({"z.json": b"{}"}, "w")), "tar"),
    ],
    ids=[
        "deflate",
        "lzma",
        "bzip2 in zip",
        "gzip",
        "xz",
        "bzip2",
        "cut",
        "zstd cut",
        "zstd",
        "zstd alone",
        "zstd of nothing",
        "zstd of a wide window",
    ],
)
def test_of_a_damaged_archive_nothing_is_left(folder, content, kind):
    with pytest.raises(BrokenArchiveError):
        unpacked(folder, content, kind)
    assert there(folder) == set(BELOW)


def entry(kind, num_bytes=0):
    header = tarfile.TarInfo("some.bin")
    header.type, header.size = kind, num_bytes
    return header.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize("compressed", [bytes, gzip.compress, zstd.compress], ids=["as it is", "gzip", "zstd"])
@pytest.mark.parametrize(
    "kind",
    [
        tarfile.GNUTYPE_LONGNAME,
        tarfile.GNUTYPE_LONGLINK,
        tarfile.XHDTYPE,
        tarfile.XGLTYPE,
        tarfile.SOLARIS_XHDTYPE,
    ],
    ids=["name", "link", "pax", "global", "solaris"],
)
@pytest.mark.parametrize("before", [b"", entry(tarfile.REGTYPE)], ids=["first", "second"])
def test_what_describes_an_entry_does_not_fill_the_memory(folder, compressed, kind, before):
    with pytest.raises(BrokenArchiveError, match="described by more than 1,048,576 bytes"):
        unpacked(folder, compressed(before + entry(kind, 1 << 32) + bytes(1024)))
    assert there(folder) == set(BELOW)


def sparse(num_blocks):
    """An entry with a hole, of which it says in so many blocks more where its parts are."""
    header = bytearray(entry(tarfile.GNUTYPE_SPARSE))
    one = b"00000000001\0" * 2
    header[386:410], header[482] = one, 1
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    more = one * 21 + b"\1" + bytes(7)
    last = bytes(512)
    return bytes(header) + more * num_blocks + last


@pytest.mark.parametrize("before", [b"", entry(tarfile.REGTYPE)], ids=["first", "second"])
def test_parts_of_a_sparse_file_do_not_fill_the_memory(folder, before):
    unpacked(folder, zstd.compress(before + sparse(20) + packed({"z.json": b"{}"}, "w")))
    assert there(folder) == {*BELOW, "z.json"}
    with pytest.raises(BrokenArchiveError, match="described by more than 1,048,576 bytes"):
        unpacked(folder, zstd.compress(before + sparse(2048) + bytes(1024)))


def test_entries_that_are_left_out_take_no_memory(folder):
    content = zstd.compress(entry(tarfile.REGTYPE) * 8_000 + packed({"z.json": b"{}"}, "w"))
    tracemalloc.start()
    try:
        unpacked(folder, content)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert there(folder) == {*BELOW, "z.json"}
    assert peak < 3 << 20


def test_bytes_are_reserved_before_they_are_written(folder):
    asked = []

    def reserve(num_bytes):
        asked.append(num_bytes)
        if sum(asked) > 10:
            raise MemoryError

    unpacked(folder, packed({"config.json": b"123", "z.json": b"1234"}), reserve=reserve)
    assert asked == [2, 4]
    with pytest.raises(MemoryError):
        unpacked(folder, packed({"y.json": b"1234", "x.json": b"1"}), reserve=reserve)
    assert there(folder) == {*BELOW, "z.json"}
