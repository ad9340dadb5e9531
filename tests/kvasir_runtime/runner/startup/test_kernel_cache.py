"""Where Triton's compiled kernels lie: beside what starts have measured, by card, driver and versions."""

import logging
import os
import time

import pytest
import torch

from kvasir_api import names
from kvasir_runtime.runner.startup import kernel_cache, startup_cache_key


def used(parent, key="card", least_free_bytes=0, **environment):
    found = {names.ENV_STARTUP_CACHE: str(parent), **environment}
    kernel_cache.use("", key, found, least_free_bytes=least_free_bytes)
    return found.get(kernel_cache.VARIABLE)


def test_kernels_are_kept_by_card_and_versions(tmp_path):
    first = used(tmp_path / "start")
    assert os.path.dirname(first) == str(tmp_path / "start" / "kernels")  # noqa: PTH120
    assert os.stat(first).st_mode & 0o777 == 0o700  # noqa: PTH116
    assert used(tmp_path / "start") == first
    assert used(tmp_path / "start", "another card") != first


def test_triton_looks_where_the_variable_says(tmp_path, monkeypatch):
    knobs = pytest.importorskip("triton.knobs")
    monkeypatch.delenv(kernel_cache.VARIABLE, raising=False)
    monkeypatch.setenv(names.ENV_STARTUP_CACHE, str(tmp_path))
    kernel_cache.use("", "card", least_free_bytes=0)
    assert knobs.cache.dir == os.environ[kernel_cache.VARIABLE]
    monkeypatch.delenv(kernel_cache.VARIABLE)


@pytest.mark.parametrize(
    ("parent", "key", "environment"),
    [
        ("", "card", {}),
        ("off", "card", {}),
        ("start", startup_cache_key.compiler(torch.device("cpu")), {}),
        ("start", "card", {kernel_cache.VARIABLE: "/mine"}),
    ],
)
def test_nothing_is_set_without_a_start_cache_or_over_a_choice(tmp_path, parent, key, environment):
    place = str(tmp_path / parent) if parent == "start" else parent
    assert used(place, key, **environment) == environment.get(kernel_cache.VARIABLE)
    assert not (tmp_path / "start").exists()


@pytest.mark.parametrize("trouble", ["open to others", "no room", "a file"])
def test_a_place_that_cannot_be_used_is_said_in_one_line(tmp_path, caplog, trouble):
    parent = tmp_path / "start"
    if trouble == "a file":
        parent.touch()
    else:
        parent.mkdir()
    if trouble == "open to others":
        parent.chmod(0o777)
    with caplog.at_level(logging.WARNING):
        assert used(parent, least_free_bytes=1 << 62 if trouble == "no room" else 0) is None
    (line,) = caplog.messages
    assert line.startswith(f"compiled kernels are not kept in {parent}/kernels: ")


def test_kernels_of_a_key_that_no_start_used_for_a_month_are_removed(tmp_path):
    old, young = (tmp_path / "kernels" / name for name in ("old", "young"))
    for folder in (old, young):
        (folder / "kernel").mkdir(parents=True)
        (folder / "kernel" / "a.cubin").touch()
    tmp_path.chmod(0o700)
    (tmp_path / "kernels").chmod(0o700)
    past = time.time() - kernel_cache.UNUSED_S - 60
    os.utime(old, (past, past))
    assert used(tmp_path)
    assert not old.exists()
    assert (young / "kernel" / "a.cubin").exists()
