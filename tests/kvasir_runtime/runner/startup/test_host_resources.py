"""Threads and memory come from what was granted, not from what the node has."""

import ctypes
import mmap
import os
from pathlib import Path

import pytest
import torch

from kvasir_api import names
from kvasir_runtime.runner.startup import host_resources


@pytest.mark.parametrize(("environment", "threads"), [({"OMP_NUM_THREADS": "3"}, 3), ({"OMP_NUM_THREADS": "5,2"}, 5)])
def test_requested_threads(environment: dict[str, str], threads: int) -> None:
    assert host_resources.num_threads(environment) == threads


@pytest.mark.parametrize("environment", [{}, {"OMP_NUM_THREADS": "0"}, {"OMP_NUM_THREADS": "many"}])
def test_threads_are_at_most_the_cpus_granted(environment: dict[str, str]) -> None:
    assert 1 <= host_resources.num_threads(environment) <= len(os.sched_getaffinity(0))


def test_memory_figures_are_in_order() -> None:
    assert (
        0
        < host_resources.resident_bytes()
        <= host_resources.peak_resident_bytes()
        <= host_resources.memory_limit_bytes()
    )
    assert host_resources.memory_available_bytes() > 0


def test_a_memory_limit_that_no_control_group_enforces_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = host_resources.memory_limit_bytes() // 2
    monkeypatch.setenv(names.ENV_MEMORY_LIMIT, str(limit))
    assert (host_resources.memory_limit_bytes(), host_resources.memory_is_shared()) == (limit, False)
    monkeypatch.setenv(names.ENV_MEMORY_LIMIT, str(1 << 62))
    assert host_resources.memory_limit_bytes() == 2 * limit or host_resources.memory_limit_bytes() == 2 * limit + 1


def test_pages_of_libraries_go_but_for_those_that_were_written(tmp_path: Path) -> None:
    """As the loader does it: pages of a file are written privately, then closed to writing."""
    (tmp_path / "lib.so").write_bytes(b"as in the file".ljust(4 * mmap.PAGESIZE, b"."))
    with (tmp_path / "lib.so").open("rb") as file:
        written, clean = (mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) for _ in range(2))
    written[:7] = b"written"
    assert clean[:5] == b"as in"
    for one in (written, clean):
        address = ctypes.addressof(ctypes.c_char.from_buffer(one))
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), ctypes.c_size_t(len(one)), mmap.PROT_READ) == 0
    before = host_resources.resident_bytes()
    host_resources.return_library_pages()
    assert host_resources.resident_bytes() < before
    assert (written[:7], clean[:5]) == (b"written", b"as in")
    assert torch.ones(3).sum() == 3


@pytest.mark.parametrize(
    ("entries", "as_in_file"),
    [([0, 0b101 << 61], True), ([0b100 << 61], False), ([0b101 << 61, 0b010 << 61], False), ([], True)],
)
def test_a_page_that_is_in_memory_or_swapped_but_not_of_a_file_was_written(
    entries: list[int], as_in_file: bool
) -> None:
    """The highest bits of an entry of pagemap: in memory, swapped, of a file."""
    assert host_resources.as_in_file(b"".join(entry.to_bytes(8, "little") for entry in entries)) == as_in_file
