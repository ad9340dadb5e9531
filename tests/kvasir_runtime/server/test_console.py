"""What a person reads during the start, and what a log collector reads."""

import io
import json
import logging

import msgspec
import pytest

from fakes.engine_facts import engine_facts
from kvasir_runtime import log_config
from kvasir_runtime.server.banner import StartSummary, banner, progress_line, size
from kvasir_runtime.server.console import LINE_EVERY_S, Console

READY = engine_facts(
    kernels="reference",
    dtype="bfloat16",
    block_size=16,
    num_blocks=2500,
    max_model_len=16_000,
    max_sequences=64,
    weights_bytes=3 << 30,
    kv_bytes_per_token=1 << 16,
    load_s=2.0,
    warm_s=1.0,
)
START = StartSummary(names=("a", "b"), folder="/m", http="http://h:1", ops="http://h:2", total_s=6.0, find_s=0.5)


def test_the_banner_has_every_fact():
    assert banner(READY, START).splitlines() == [
        "Kvasir is ready",
        "  model       a, b (/m)",
        "  device      cpu, reference kernels, bfloat16",
        "  weights     3.00 GiB",
        "  KV cache    40,000 tokens in blocks of 16 (2.44 GiB)",
        "  concurrency 2.50 requests of 16,000 tokens, 64 at most",
        "  clients     http://h:1/v1",
        "  control     http://h:2",
        "  ready in    6.0 s (find 0.5, start 2.5, load 2.0, warm-up 1.0)",
    ]


@pytest.mark.parametrize(
    ("kernels", "fallback", "want"),
    [
        ("triton, graphs", "", "H200, triton kernels, graphs, bfloat16"),
        ("triton", "steps cannot be recorded: why", "H200, triton kernels (steps cannot be recorded: why), bfloat16"),
    ],
)
def test_the_banner_says_whether_steps_are_recorded(kernels, fallback, want):
    ready = msgspec.structs.replace(READY, device="H200", kernels=kernels, fallback=fallback)
    assert f"  device      {want}" in banner(ready, START).splitlines()


@pytest.mark.parametrize(("longest", "want"), [(16_000, 2), (20_001, 2), (5_000, 8)])
def test_requests_of_ranks_are_whole_ones(longest, want):
    """A rank holds 20,000 tokens, and the last one of a request needs no place."""
    ready = msgspec.structs.replace(READY, data_ranks=2, max_model_len=longest)
    assert f"  concurrency {want:.2f} requests of {longest:,} tokens, 64 at most" in banner(ready, START).splitlines()


@pytest.mark.parametrize(
    ("count", "want"), [(5, "5 B"), (2048, "2.0 KiB"), (5 << 20, "5.0 MiB"), (3 << 29, "1.50 GiB")]
)
def test_sizes(count, want):
    assert size(count) == want


def test_progress_lines_come_every_few_seconds_and_at_each_phase():
    times = iter([0.0, 1.0, LINE_EVERY_S, LINE_EVERY_S + 0.1])
    stream = io.StringIO()
    console = Console("text", stream=stream, clock=lambda: next(times))
    for phase, fraction in [("loading", 0.1), ("loading", 0.2), ("loading", 0.5), ("warming", 0.0)]:
        console.show(phase, fraction, 7.0)
    assert stream.getvalue().splitlines() == [
        "loading 10%, about 7 s left",
        "loading 50%, about 7 s left",
        "warming 0%, about 7 s left",
    ]
    assert progress_line("loading", 0.0, -1.0, "x") == "loading 0% (x)"


@pytest.fixture
def logged():
    root = logging.getLogger()
    before = root.handlers[:], root.level
    stream = io.StringIO()
    log_config.configure("json", stream)
    yield stream
    root.handlers[:], _ = before
    root.setLevel(before[1])


def test_json_lines_carry_fields_and_exceptions(logged):
    log = logging.getLogger("kvasir.test")
    log.info("request", extra={"request_id": "r", "status": 200})
    try:
        raise ValueError("boom")
    except ValueError:
        log.exception("failed")
    first, second = map(json.loads, logged.getvalue().splitlines())
    assert first.items() >= {"level": "info", "message": "request", "request_id": "r", "status": 200}.items()
    assert first["time"].endswith("+00:00")
    assert "ValueError: boom" in second["exception"]


def test_a_person_reads_of_the_port_once_the_model_is_found():
    stream = io.StringIO()
    console = Console("text", stream=stream)
    console.opened("http://h:1", "http://h:2")
    assert stream.getvalue() == ""
    console.found("http://h:1", "http://h:2", note="this is a checkpoint with images")
    assert stream.getvalue().splitlines() == [
        "note: this is a checkpoint with images",
        "listening on http://h:1 for clients, http://h:2 for control",
    ]


def test_json_start_has_no_loose_lines(logged):
    console = Console("json")
    console.opened("http://h:1", "http://h:2")
    console.found("http://h:1", "http://h:2", note="text alone")
    console.show("loading", 0.5)
    console.ready(READY, START)
    console.leaving(3, 60)
    console.failed("broken")
    lines = [json.loads(line) for line in logged.getvalue().splitlines()]
    assert [line["message"] for line in lines] == ["listening", "note", "starting", "ready", "draining", "failed"]
    assert lines[3]["capacity_tokens"] == 40_000
    assert lines[5]["error"] == "broken"


@pytest.mark.parametrize(
    ("message", "code", "line"),
    [("broken", 1, "kvasir failed: broken\n"), ("DeviceFault: Xid 79: x", 3, "kvasir: DeviceFault: Xid 79: x\n")],
)
def test_a_failed_device_ends_with_a_code_of_its_own(message, code, line):
    stream = io.StringIO()
    assert Console("text", stream=stream).failed(message) == code
    assert stream.getvalue() == line
