"""Pieces of files reach their places byte for byte, whatever the disk, the device or the caller do meanwhile."""

import os
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fakes.checkpoints import Shape
from fakes.checkpoints import write as write_checkpoint
from kvasir_runtime.arriving import ArrivingFolder, Shards
from kvasir_runtime.errors import ModelError
from kvasir_runtime.kernels.quantize import reference
from kvasir_runtime.layers.spec import parameter_shapes
from kvasir_runtime.models.config import read_config
from kvasir_runtime.models.registry import family_of
from kvasir_runtime.weights import loader as loading
from kvasir_runtime.weights import safetensors_checkpoint
from kvasir_runtime.weights.staging import CpuStaging, CudaStaging, Put
from kvasir_runtime.weights.streaming import MOST_BYTES, ON_CUDA, BufferRing, FilePiece, stream

SIZE = 10_000


class Late:
    """A device that copies as late as it may: when somebody waits for it, or at the end."""

    def __init__(self) -> None:
        self.waiting: deque[_Moment] = deque()
        self.buffers: list[Tensor] = []

    def buffer(self, num_bytes: int) -> Tensor:
        self.buffers.append(torch.full((num_bytes,), 0xEE, dtype=torch.uint8))
        return self.buffers[-1]

    def place(self, raw: Tensor, put: Put) -> "_Moment":
        self.waiting.append(_Moment(self.waiting, lambda: put(raw)))
        return self.waiting[-1]

    def finish(self) -> None:
        while self.waiting:
            self.waiting[0].synchronize()


class _Moment:
    def __init__(self, waiting: "deque[_Moment]", copy: Callable[[], None]) -> None:
        self._waiting, self._copy = waiting, copy

    def synchronize(self) -> None:
        """Runs everything up to this, in order, as a stream would."""
        while self in self._waiting:
            self._waiting.popleft()._copy()


def files(folder: Path, sizes: Sequence[int]) -> list[Path]:
    generator = torch.Generator().manual_seed(7)
    paths = []
    for number, size in enumerate(sizes):
        path = folder / f"{number}.bin"
        path.write_bytes(bytes(torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator).tolist()))
        paths.append(path)
    return paths


def pieces_of(paths: Sequence[Path], step: int) -> tuple[list[FilePiece], dict[Path, Tensor]]:
    """All of every file, and what they are put into."""
    into = {path: torch.zeros(path.stat().st_size, dtype=torch.uint8) for path in paths}
    pieces = []
    for path, place in into.items():
        for start in range(0, len(place), step):
            part = place[start : start + step]
            pieces.append(FilePiece(path=path, start=start, num_bytes=len(part), put=part.copy_))
    return pieces, into


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("weights")]


@pytest.mark.parametrize("device", [CpuStaging, Late])
@pytest.mark.parametrize(
    "ring", [BufferRing(threads=1, buffers=2), BufferRing(threads=4, buffers=2), BufferRing(threads=3, buffers=6)]
)
def test_all_bytes_arrive_though_copies_are_late(
    tmp_path: Path, device: type[CpuStaging | Late], ring: BufferRing
) -> None:
    paths = files(tmp_path, (SIZE, 1, 4097))
    pieces, into = pieces_of(paths, 128)
    placed: list[FilePiece] = []
    stream(pieces, device(), ring, placed.append)
    for path in paths:
        assert bytes(into[path].tolist()) == path.read_bytes()
    assert sorted(map(id, placed)) == sorted(map(id, pieces))
    assert not threads()


def test_memory_is_that_of_the_ring(tmp_path: Path) -> None:
    pieces, _ = pieces_of(files(tmp_path, (SIZE,)), 100)
    device = Late()
    stream(pieces, device, BufferRing(threads=3, buffers=5), lambda _: None)
    assert [len(buffer) for buffer in device.buffers] == [100] * 5
    few = Late()
    stream(pieces[:1], few, ON_CUDA, lambda _: None)
    assert len(few.buffers) == 2


class Untouched(Late):
    """Its buffers have no memory until they are written."""

    def buffer(self, num_bytes: int) -> Tensor:
        self.buffers.append(torch.empty(num_bytes, dtype=torch.uint8))
        return self.buffers[-1]


@pytest.mark.parametrize(("num_bytes", "count"), [(MOST_BYTES // 3, 3), (MOST_BYTES // 2 + 1, 2), (MOST_BYTES * 2, 2)])
def test_large_pieces_have_fewer_buffers_and_at_least_two(tmp_path: Path, num_bytes: int, count: int) -> None:
    (tmp_path / "short").touch()
    device = Untouched()
    pieces = [FilePiece(path=tmp_path / "short", start=0, num_bytes=num_bytes, put=unwanted)] * 9
    with pytest.raises(ModelError, match="short"):
        stream(pieces, device, BufferRing(threads=1, buffers=8), lambda _: None)
    assert len(device.buffers) == count


@pytest.mark.parametrize("buffered", [0, 1, 40])
def test_what_belongs_on_the_host_as_it_is_needs_no_buffer(tmp_path: Path, buffered: int) -> None:
    (path,) = files(tmp_path, (SIZE,))
    pieces, into = pieces_of([path], 100)
    direct = [replace(piece, put=unwanted, into=into[path][piece.start :][:100]) for piece in pieces[buffered:]]
    device, placed = Late(), list[FilePiece]()
    stream(pieces[:buffered] + direct, device, BufferRing(threads=3, buffers=4), placed.append)
    assert bytes(into[path].tolist()) == path.read_bytes()
    assert len(device.buffers) == min(4, buffered + 1 if buffered else 0)
    assert len(placed) == len(pieces)
    assert not threads()


def unwanted(raw: Tensor) -> None:
    raise AssertionError("put although the bytes are in their place")


def test_a_disk_may_give_less_than_was_requested(tmp_path: Path) -> None:
    (path,) = files(tmp_path, (SIZE,))
    pieces, into = pieces_of([path], 1000)

    def seven(descriptor: int, views: list[memoryview], offset: int) -> int:
        return os.preadv(descriptor, [views[0][:7]], offset)

    stream(pieces, CpuStaging(), BufferRing(threads=2, buffers=3), lambda _: None, seven)
    assert bytes(into[path].tolist()) == path.read_bytes()


def test_a_file_that_became_shorter_is_named(tmp_path: Path) -> None:
    (path,) = files(tmp_path, (SIZE,))
    pieces, _ = pieces_of([path], 1000)
    os.truncate(path, SIZE - 1)
    with pytest.raises(ModelError, match=r"0\.bin is truncated or damaged: it became shorter while it was read"):
        stream(pieces, Late(), BufferRing(threads=2, buffers=3), lambda _: None)
    assert not threads()


def test_a_disk_that_fails_is_named_and_ends_every_thread(tmp_path: Path) -> None:
    (path,) = files(tmp_path, (SIZE,))
    pieces, _ = pieces_of([path], 100)

    def failing(descriptor: int, views: list[memoryview], offset: int) -> int:
        if offset >= SIZE // 2:
            raise OSError(5, "Input/output error")
        return os.preadv(descriptor, views, offset)

    with pytest.raises(ModelError, match=r"0\.bin cannot be read: Input/output error"):
        stream(pieces, CpuStaging(), BufferRing(threads=4, buffers=8), lambda _: None, failing)
    path.unlink()
    with pytest.raises(ModelError, match=r"0\.bin cannot be read: No such file"):
        stream(pieces, CpuStaging(), BufferRing(threads=4, buffers=8), lambda _: None)
    assert not threads()


class Stopped(Exception):
    pass


def test_who_calls_may_stop_it_at_any_piece(tmp_path: Path) -> None:
    pieces, _ = pieces_of(files(tmp_path, (SIZE,)), 100)
    seen: list[FilePiece] = []

    def stop(piece: FilePiece) -> None:
        seen.append(piece)
        if len(seen) == 3:
            raise Stopped

    with pytest.raises(Stopped):
        stream(pieces, Late(), BufferRing(threads=4, buffers=4), stop)
    assert len(seen) == 3
    assert not threads()


def test_what_is_fetched_again_is_not_waited_for_where_all_else_ended(tmp_path: Path) -> None:
    """A piece is there when a thread takes it, and its file is another one when the thread has a buffer for it."""
    folder = Path(tempfile.gettempdir())
    before = folder / ".." / folder.name / os.path.relpath(tmp_path, folder)  # by its name, which decides what is read
    (path,) = files(before, (SIZE,))
    (real := tmp_path / "real").mkdir()
    partial = tmp_path / "b.incomplete"
    partial.write_bytes(bytes(SIZE))
    shards = Shards(headers={"b": b""}, sizes={"b": SIZE}, partials={"b": "../b.incomplete"})
    coming = ArrivingFolder(real, shards)
    coming.comes("b")
    late = FilePiece(path=coming.path / "b", start=0, num_bytes=SIZE // 2, put=lambda _: None)
    read = threading.Event()

    def noted(descriptor: int, views: list[memoryview], offset: int) -> int:
        if offset:
            read.set()
        return os.preadv(descriptor, views, offset)

    def put(_: Tensor) -> None:
        assert read.wait(100)
        time.sleep(0.05)  # for the thread to take the last piece
        partial.unlink()
        partial.write_bytes(bytes(SIZE))

    pieces = [FilePiece(path=path, start=at, num_bytes=SIZE // 2, put=put) for at in (0, SIZE // 2)]

    def stop(_: FilePiece) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        stream([*pieces, late], CpuStaging(), BufferRing(threads=1, buffers=2), stop, noted)
    assert not threads()


class Recorder:
    """Stands for torch.cuda where there is no card, and keeps what was asked of it."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def Stream(self, device: torch.device) -> "_Stream":  # noqa: N802 -- torch's name
        return _Stream("side", self.said)

    def current_stream(self, device: torch.device) -> "_Stream":
        return _Stream("current", self.said)

    def stream(self, stream: "_Stream") -> AbstractContextManager[None]:
        self.said.append(f"on {stream.name}")
        return nullcontext()

    def Event(self) -> "_Event":  # noqa: N802 -- torch's name
        return _Event(self.said)


class _Stream:
    def __init__(self, name: str, said: list[str]) -> None:
        self.name, self._said = name, said

    def wait_stream(self, other: "_Stream") -> None:
        self._said.append(f"{self.name} waits for {other.name}")

    def synchronize(self) -> None:
        self._said.append(f"{self.name} done")


class _Event:
    def __init__(self, said: list[str]) -> None:
        self._said = said

    def record(self, stream: _Stream) -> None:
        self._said.append(f"mark on {stream.name}")

    def synchronize(self) -> None:
        self._said.append("mark done")


def test_on_a_card_copies_have_their_stream_and_its_marks_free_the_buffers(tmp_path: Path) -> None:
    (path,) = files(tmp_path, (300,))
    pieces, into = pieces_of([path], 100)
    cuda = Recorder()
    device = CudaStaging(torch.device("cpu"), cuda=cuda, pinned=lambda size: torch.empty(size, dtype=torch.uint8))
    stream(pieces, device, BufferRing(threads=1, buffers=2), lambda piece: cuda.said.append("placed"))
    assert bytes(into[path].tolist()) == path.read_bytes()
    placing, reused = ["on side", "mark on side"], ["mark done"]
    assert cuda.said == [
        "side waits for current",
        *placing, "placed",
        *placing, *reused, "placed",
        *placing, *reused, "placed",
        "side done", "current waits for side",
    ]  # fmt: skip


def test_a_whole_checkpoint_is_the_same_over_a_late_device(tmp_path: Path) -> None:
    """The loader's own pieces, small ones, in shards of another type."""
    folder = write_checkpoint(tmp_path, Shape(family="qwen2", dtype=torch.bfloat16), num_shards=3)
    config = read_config(folder)
    family = family_of(config)
    spec = family.spec(config)
    shapes, places = parameter_shapes(spec), family.places(spec)
    wanted = loading.load(folder, places, shapes, torch.float32, torch.device("cpu"), lambda *_: None)
    found = {name: torch.empty(shape) for name, shape in shapes.items()}
    pieces = [
        piece
        for file in safetensors_checkpoint.files(folder)
        for stored in safetensors_checkpoint.stored(file)
        for place in [places[stored.name]]
        for piece in loading._pieces(stored, [found[place.tensor]], place.first_row, 100, reference)
    ]
    assert len(pieces) > 400
    stream(pieces, Late(), BufferRing(threads=3, buffers=4), lambda _: None)
    for name, tensor in wanted.items():
        assert isinstance(tensor, Tensor)
        assert torch.equal(found[name], tensor), name
