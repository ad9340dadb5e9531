"""Volume files and logs on disk: atomic updates, following a log."""

import asyncio
from pathlib import Path

import pytest

from kvasir_local.node import atomic_writer, container_logs
from kvasir_local.node.container_logs import LogOptions
from kvasir_local.node.rules.volume_files import VolumeFile


def shown(directory: Path) -> dict[str, bytes]:
    """What a program sees: every visible file with its content."""
    visible = [path for path in directory.rglob("*") if not str(path.relative_to(directory)).startswith("..")]
    return {str(path.relative_to(directory)): path.read_bytes() for path in visible if path.is_file()}


def test_a_volume_is_replaced_as_a_whole(tmp_path: Path):
    assert atomic_writer.write(tmp_path, {"a": VolumeFile(b"1", 0o644), "b": VolumeFile(b"2", 0o400)})
    first = (tmp_path / "..data").readlink()
    assert shown(tmp_path) == {"a": b"1", "b": b"2"}
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o400
    assert (tmp_path / "a").readlink() == Path("..data/a")
    assert atomic_writer.write(tmp_path, {"a": VolumeFile(b"9", 0o644), "c": VolumeFile(b"3", 0o644)})
    assert shown(tmp_path) == {"a": b"9", "c": b"3"}
    assert not (tmp_path / first).exists()


def test_an_equal_volume_is_not_written_again(tmp_path: Path):
    files = {"deep/a": VolumeFile(b"1", 0o644)}
    assert atomic_writer.write(tmp_path, files)
    before = (tmp_path / "..data").readlink()
    assert not atomic_writer.write(tmp_path, files)
    assert (tmp_path / "..data").readlink() == before
    assert (tmp_path / "deep" / "a").read_bytes() == b"1"


def test_an_emptied_volume_shows_nothing(tmp_path: Path):
    atomic_writer.write(tmp_path, {"a": VolumeFile(b"1", 0o644)})
    atomic_writer.write(tmp_path, {})
    assert shown(tmp_path) == {}


def entry(text: str, flag: str = "F") -> bytes:
    return f"2026-01-02T03:04:05.678901234Z stdout {flag} {text}\n".encode()


def test_partial_lines_are_joined_and_old_parts_come_first(tmp_path: Path):
    path = tmp_path / "0.log"
    path.with_name("0.log.1").write_bytes(entry("older"))
    path.write_bytes(entry("half", "P") + entry("line"))
    assert container_logs.read(path, LogOptions()) == b"older\nhalfline\n"
    assert container_logs.end_of_log(path) == "older\nhalfline"
    assert container_logs.end_of_log(tmp_path / "none.log") == ""


@pytest.mark.asyncio
async def test_following_shows_what_is_added_and_goes_on_in_a_new_file(tmp_path: Path):
    path = tmp_path / "0.log"
    path.write_bytes(entry("one") + entry("two"))
    over = asyncio.Event()
    seen: list[bytes] = []

    async def read() -> None:
        async for part in container_logs.follow(path, LogOptions(tail=1), over.is_set):
            seen.append(part)  # noqa: PERF401 - it is looked at while it grows

    async def until(text: bytes) -> None:
        async with asyncio.timeout(60):
            while text not in b"".join(seen):  # noqa: ASYNC110 - nothing tells when
                await asyncio.sleep(0.01)

    task = asyncio.create_task(read())
    await until(b"two")
    with path.open("ab") as file:
        file.write(entry("three"))
    await until(b"three")
    path.replace(path.with_name("0.log.1"))
    path.write_bytes(entry("four"))
    await until(b"four")
    over.set()
    await task
    assert b"".join(seen) == b"two\nthree\nfour\n"
