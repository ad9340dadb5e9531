"""What one start measured spares the next one the measurement, and nothing that lies in the directory can hurt."""

import json
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from fakes import checkpoints
from fakes.checkpoints import Shape
from kvasir_api.options import RuntimeOptions, ServeOptions
from kvasir_runtime.kernels.cpu.ops import cpu_ops
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.runner.startup import host_resources, startup_cache, startup_cache_key
from kvasir_runtime.runner.startup.build import build
from kvasir_runtime.runner.startup.capacity import MeasuredMemory, cache_blocks
from kvasir_runtime.runner.startup.startup_cache import MAX_ENTRIES, SUFFIX, StartupCache, StepMemory

MIB = 2**20
KEY = {"model": "m", "device": "d"}
FOUND = StepMemory(peak_bytes=5 * MIB, graph_bytes=7, num_blocks=9)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return checkpoints.write(tmp_path / "model", Shape(max_position_embeddings=512))


def started(folder: Path, cache: str | Path, **options: Any) -> ModelRunner:
    given = ServeOptions(model=str(folder), device="cpu", startup_cache=str(cache), **options)
    return build(given, lambda progress: None)


def files(cache: Path) -> list[Path]:
    return sorted(cache.iterdir()) if cache.exists() else []


@pytest.mark.parametrize(
    ("option", "environment", "want"),
    [
        ("off", {"KVASIR_STARTUP_CACHE": "/a"}, None),
        ("/b", {"KVASIR_STARTUP_CACHE": "off"}, Path("/b")),
        ("", {"KVASIR_STARTUP_CACHE": "off"}, None),
        ("", {"KVASIR_STARTUP_CACHE": "/a"}, Path("/a")),
        ("", {"XDG_CACHE_HOME": "/c"}, Path("/c/kvasir/start")),
        ("~/x", {}, Path.home() / "x"),
        ("", {}, Path.home() / ".cache/kvasir/start"),
    ],
)
def test_option_then_variable_then_the_users_cache(option: str, environment: dict[str, str], want: Path | None) -> None:
    assert startup_cache.directory(option, environment) == want


def test_the_second_start_takes_what_the_first_one_measured(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = started(folder, cache, memory_percent=20)
    (kept,) = files(cache)
    assert kept.stat().st_mode & 0o777 == 0o600
    assert cache.stat().st_mode & 0o777 == 0o700
    document = json.loads(kept.read_text())
    assert document["measured"]["num_blocks"] == first.facts.num_blocks
    assert document["key"]["model"]
    # Only a start that believes the plan leaves no more than about this much to the cache.
    granted = min(host_resources.memory_limit_bytes(), host_resources.memory_available_bytes()) // 5
    document["measured"]["peak_bytes"] = granted - host_resources.resident_bytes() - 256 * MIB
    kept.write_text(json.dumps(document))
    kept.chmod(0o600)
    second = started(folder, cache, memory_percent=20)
    assert second.facts.num_blocks < first.facts.num_blocks
    assert json.loads(kept.read_text())["measured"]["peak_bytes"] == document["measured"]["peak_bytes"]


def test_off_keeps_nothing(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    started(folder, "off", kv_cache_tokens=512)
    assert not cache.exists()


def test_a_plan_under_which_nothing_fits_is_measured_again(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    started(folder, cache)
    (kept,) = files(cache)
    document = json.loads(kept.read_text())
    document["measured"]["peak_bytes"] = 1 << 50
    kept.write_text(json.dumps(document))
    kept.chmod(0o600)
    assert started(folder, cache).facts.num_blocks > 0
    assert json.loads(kept.read_text())["measured"]["peak_bytes"] < 1 << 40


def test_a_known_start_still_computes_before_it_is_ready(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    facts = [started(folder, cache, kv_cache_tokens=512).facts for _ in range(2)]
    assert facts[1].warm_s > 0
    first, second = (msgspec.structs.replace(one, warm_s=0, load_s=0) for one in facts)
    assert first == second


@pytest.mark.parametrize("name", [*sorted(RuntimeOptions.model_fields), "enable_eplb", "eplb_config"])
def test_every_option_of_the_engine_makes_another_key(name: str, folder: Path) -> None:
    options = ServeOptions(model=str(folder))
    other = options.model_copy(update={name: "another"})
    device, ops = torch.device("cpu"), cpu_ops()
    assert startup_cache_key.key(options, folder, ops, device) != startup_cache_key.key(other, folder, ops, device)


def test_the_key_knows_the_model_by_what_is_in_it(folder: Path, tmp_path: Path) -> None:
    device, ops = torch.device("cpu"), cpu_ops()

    def key(path: Path) -> dict[str, str]:
        return startup_cache_key.key(ServeOptions(model="m"), path, ops, device)

    copy = checkpoints.write(tmp_path / "copy", Shape(max_position_embeddings=512))
    assert key(copy) == key(folder)
    wider = checkpoints.write(tmp_path / "wider", Shape(max_position_embeddings=512, intermediate_size=128))
    assert key(wider)["model"] != key(folder)["model"]
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"rope_theta": 5000.0}))
    assert key(copy)["model"] != key(folder)["model"]
    slower = replace(ops, name="other")
    assert startup_cache_key.key(ServeOptions(model="m"), folder, slower, device)["kernels"] != key(folder)["kernels"]
    assert set(key(folder)) >= {"device", "memory", "driver", "versions", "source", "allocator"}


def test_what_was_kept_is_found_under_its_own_key_only(tmp_path: Path) -> None:
    cache = StartupCache(tmp_path / "a" / "b")
    assert cache.find(KEY) is None
    cache.store(KEY, FOUND)
    assert cache.find(dict(reversed(KEY.items()))) == FOUND
    assert cache.find({**KEY, "device": "e"}) is None
    cache.drop(KEY)
    cache.drop(KEY)
    assert cache.find(KEY) is None


def _changed(document: dict[str, Any], **changes: Any) -> str:
    return json.dumps(document | changes)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda _: "", "truncated"),
        (lambda _: "{", "truncated"),
        (lambda d: json.dumps(d)[:-20], "truncated"),
        (lambda _: "[1]", "Expected `object`"),
        (lambda _: "\udcff", "invalid"),
        (lambda d: _changed(d, more=1), "unknown field `more`"),
        (lambda d: _changed(d, measured={"peak_bytes": -1}), ">= 0"),
        (lambda d: _changed(d, measured={"peak_bytes": 1 << 60}), "<= "),
        (lambda d: _changed(d, measured={"peak_bytes": "5"}), "Expected `int`"),
        (lambda d: _changed(d, version=2), "its key is another one"),
        (lambda d: _changed(d, key={"model": "other"}), "its key is another one"),
        (lambda d: json.dumps(d) + " " * startup_cache.MAX_FILE_BYTES, "not a small file"),
    ],
)
def test_damaged_and_foreign_files_are_ignored_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Any, why: str
) -> None:
    cache = StartupCache(tmp_path)
    cache.store(KEY, FOUND)
    (file,) = files(tmp_path)
    text = make(json.loads(file.read_text()))
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with caplog.at_level(logging.WARNING):
        assert cache.find(KEY) is None
    (record,) = caplog.records
    assert str(file) in record.message
    assert why in record.message
    assert "\n" not in record.message
    cache.store(KEY, FOUND)
    assert cache.find(KEY) == FOUND


@pytest.mark.parametrize("kind", ["link", "pipe", "writable", "folder"])
def test_what_somebody_else_may_have_put_there_is_not_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    cache = StartupCache(tmp_path)
    cache.store(KEY, FOUND)
    (file,) = files(tmp_path)
    if kind == "writable":
        file.chmod(0o666)
    else:
        file.rename(tmp_path / "elsewhere")
        {
            "link": lambda: file.symlink_to(tmp_path / "elsewhere"),
            "pipe": lambda: os.mkfifo(file),
            "folder": file.mkdir,
        }[kind]()
    with caplog.at_level(logging.WARNING):
        assert cache.find(KEY) is None
    assert "is ignored" in caplog.text


def test_a_directory_that_cannot_be_written_is_said_and_no_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with caplog.at_level(logging.WARNING):
        for folder in (tmp_path / "file", tmp_path / "file" / "below", open_to_all):
            StartupCache(folder).store(KEY, FOUND)
    assert [("is not kept in" in record.message) for record in caplog.records] == [True] * 3
    assert not files(open_to_all)


def test_the_oldest_go_first_and_only_plans_go(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    cache = StartupCache(tmp_path)
    for number in range(MAX_ENTRIES + 2):
        cache.store({"model": str(number)}, FOUND)
        for file in tmp_path.glob(f"*{SUFFIX}"):
            os.utime(file, ns=(0, file.stat().st_mtime_ns - 10**9))
    assert len(list(tmp_path.glob(f"*{SUFFIX}"))) == MAX_ENTRIES
    assert cache.find({"model": "1"}) is None
    assert cache.find({"model": "2"}) == FOUND
    assert (tmp_path / "notes.txt").exists()


def test_graphs_are_paid_for_before_the_cache() -> None:
    memory = MeasuredMemory(
        limit_bytes=1000 * MIB, used_bytes=100 * MIB, available_bytes=1000 * MIB, peak_bytes=50 * MIB,
        graph_bytes=30 * MIB,
    )  # fmt: skip
    assert cache_blocks(memory, 0.5, MIB) == 500 - 100 - 50 - 30
