"""How long the device waits in a step of one sequence, as torch's profiler saw it: kernels, copies, and the gaps."""

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from torch.profiler import ProfilerActivity, profile

from bench.gpu.book import Cell, Goal, failed, measured, skipped
from bench.gpu.inprocess import Late, Served, prompt
from bench.gpu.section import NO_TIME, Context

GOAL_S: Final = 100e-6
LEAST_S: Final = 15.0
COUNTED: Final = 0.75
"""Of the steps that the profiler saw."""
ON_CARD: Final = ("kernel", "gpu_memcpy", "gpu_memset")
ON_CPU: Final = ("cpu_op",)


def waited(context: Context, served: Served, steady: Callable[..., Any]) -> Cell:
    """Idle time per step, and how many kernels a step is. steady: the script, from prompts, steps and on_step."""
    known, steps = context.sizes.decode[0][1], context.sizes.steps
    name = f"device idle in a step, 1 x {known}"
    if context.left_s < LEAST_S:
        return skipped("decode", name, NO_TIME)
    on_card = context.device != "cpu"
    watched = profile(activities=[ProfilerActivity.CUDA if on_card else ProfilerActivity.CPU])

    def on_step(number: int) -> None:
        if number == -1:
            watched.start()
        elif number == steps - 1:
            watched.stop()

    ids = prompt(known, context.sizes.shape.vocab_size, "idle")
    try:
        served.run(steady([ids], steps=steps, on_step=on_step), context.left_s)
        found = intervals(_trace(watched), ON_CARD if on_card else ON_CPU)
    except Late as error:
        return skipped("decode", name, f"{NO_TIME}: {error}")
    except Exception as error:  # noqa: BLE001 -- profilers are not allowed everywhere
        return failed("decode", name, str(error))
    if not found:
        return failed("decode", name, "the profiler saw nothing on the device")
    note = f"{len(found) / steps:.0f} kernels and copies a step"
    return measured(
        "decode", name, [gaps(found) / (steps * COUNTED)], goal=Goal(sense="at most", value=GOAL_S), note=note
    )


def _trace(watched: profile) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        watched.export_chrome_trace(str(file))
        found: dict[str, Any] = json.loads(file.read_text())
    return found


def intervals(trace: dict[str, Any], kinds: Sequence[str]) -> list[tuple[float, float]]:
    """Begin and end in seconds of what the device did."""
    events = trace.get("traceEvents", [])
    return [
        (event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6)
        for event in events
        if event.get("ph") == "X" and event.get("cat") in kinds
    ]


def gaps(busy: Sequence[tuple[float, float]], counted: float = COUNTED) -> float:
    """Seconds in which nothing ran between the first and the last of the counted share, the later one.

    What overlaps counts once. While the profiler starts, the host is late, so the first steps do not count.
    """
    ordered = sorted(busy)[round(len(busy) * (1 - counted)) :]
    total, reached = 0.0, ordered[0][1]
    for begin, end in ordered:
        total += max(0.0, begin - reached)
        reached = max(reached, end)
    return total
