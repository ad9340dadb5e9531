"""Times of calls: from events around replays of a recorded graph on a card, from a clock on a CPU."""

import time
from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch.profiler import ProfilerActivity, profile

REPLAYS: Final = 30
WARM_UPS: Final = 5

Call = Callable[[], object]


def seconds(calls: Sequence[Call], device: torch.device, replays: int = REPLAYS) -> list[float]:
    """Sorted times of one call; the calls run one after another, so that several inputs can outgrow a cache."""
    for call in calls:
        call()
    if device.type == "cpu":
        return sorted(_clocked(calls) for _ in range(replays))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for replay in range(WARM_UPS + replays):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        if replay >= WARM_UPS:
            times.append(start.elapsed_time(end) / 1000 / len(calls))
    return sorted(times)


def peak_bytes(call: Call, device: torch.device) -> int:
    """Memory that a call takes at most beyond what is there before it, its results included.

    On a CPU all that torch allocates in it, as its profiler counts.
    """
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        call()
    return sum(max(0, event.self_cpu_memory_usage) for event in watched.events() or ())


def wall(call: Call, device: torch.device, replays: int = REPLAYS) -> list[float]:
    """Sorted times as the host sees them, launches and waiting and all."""
    times = []
    for replay in range(replays + 1):
        started = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        if replay:
            times.append(time.perf_counter() - started)
    return sorted(times)


def _clocked(calls: Sequence[Call]) -> float:
    started = time.perf_counter()
    for call in calls:
        call()
    return (time.perf_counter() - started) / len(calls)
