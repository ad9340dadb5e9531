"""Threads and memory come from what was granted, not from what the node has."""

import os

import pytest

from kvasir_api import names
from kvasir_runtime.runner import host


@pytest.mark.parametrize(("environment", "threads"), [({"OMP_NUM_THREADS": "3"}, 3), ({"OMP_NUM_THREADS": "5,2"}, 5)])
def test_threads_that_were_asked_for(environment: dict[str, str], threads: int) -> None:
    assert host.num_threads(environment) == threads


@pytest.mark.parametrize("environment", [{}, {"OMP_NUM_THREADS": "0"}, {"OMP_NUM_THREADS": "many"}])
def test_threads_are_at_most_the_cpus_granted(environment: dict[str, str]) -> None:
    assert 1 <= host.num_threads(environment) <= len(os.sched_getaffinity(0))


def test_memory_figures_are_in_order() -> None:
    assert 0 < host.resident_bytes() <= host.peak_resident_bytes() <= host.memory_limit_bytes()
    assert host.memory_available_bytes() > 0


def test_a_memory_limit_that_no_control_group_enforces_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = host.memory_limit_bytes() // 2
    monkeypatch.setenv(names.ENV_MEMORY_LIMIT, str(limit))
    assert (host.memory_limit_bytes(), host.memory_is_shared()) == (limit, False)
    monkeypatch.setenv(names.ENV_MEMORY_LIMIT, str(1 << 62))
    assert host.memory_limit_bytes() == 2 * limit or host.memory_limit_bytes() == 2 * limit + 1
