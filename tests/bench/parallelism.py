"""What stages and ranks do for streams that decode: `PYTHONPATH=tests python -m bench.parallelism`.

The layouts compute the same random model with as many threads in all, one after another in rounds, driven as the engine
drives them, for some seconds each, of which the last half is measured. A row gives tokens a second beside those of two
stages with one step in flight, medians of all rounds: what else runs on the machine changes rates, and ratios of one
round less. Three numbers of streams take three minutes and what it takes to load the model three times.
"""

import argparse
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from bench.shapes import SHAPES, written
from kvasir_api.options import ServeOptions
from kvasir_runtime.core.scheduler import Scheduler
from kvasir_runtime.engine.start import limits_of
from kvasir_runtime.runner.launched_step import LaunchedStep
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.runner.startup.build import build
from kvasir_runtime.wire import EngineRequest, SamplingConfig


class Layout(NamedTuple):
    """options: of the runner, which layouts with the same ones share. stages: steps in flight. chooses: the scheduler
    divides streams into sets where that is faster, and not always.
    """

    options: tuple[tuple[str, int], ...]
    stages: int = 1
    chooses: bool = True


BASE: Final = "2 stages, a step at a time"
LAYOUTS: Final = {
    BASE: Layout((("pipeline_parallel_size", 2),)),
    "2 stages": Layout((("pipeline_parallel_size", 2),), stages=2),
    "2 stages, always in 2 sets": Layout((("pipeline_parallel_size", 2),), stages=2, chooses=False),
    "2 ranks": Layout((("tensor_parallel_size", 2),)),
    "one process": Layout(()),
}
PROMPT_TOKENS: Final = 64
KV_TOKENS: Final = 16384


def main() -> None:
    """A table of ratios, a row for each number of streams."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="small", choices=SHAPES)
    parser.add_argument("--streams", nargs="*", type=int, default=[1, 2, 4, 8, 16])
    parser.add_argument("--seconds", type=float, default=4.0, help="of a layout in a round")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvasir-bench-parallelism-") as home:
        model = written(Path(home) / given.shape, SHAPES[given.shape])
        runners: dict[tuple[tuple[str, int], ...], ModelRunner] = {}
        for layout in LAYOUTS.values():
            if layout.options not in runners:
                runners[layout.options] = build(options_of(model, layout), lambda _: None)
        print(f"| {given.shape}, streams | {BASE}, tokens/s | " + " | ".join(list(LAYOUTS)[1:]) + " |", flush=True)
        print("|---|---|" + "---|" * (len(LAYOUTS) - 1))
        for streams in given.streams:
            rounds = [
                {name: rate(runners[of.options], model, of, streams, given.seconds) for name, of in LAYOUTS.items()}
                for _ in range(given.rounds)
            ]
            print(row(streams, rounds), flush=True)


def row(streams: int, rounds: Sequence[dict[str, float]]) -> str:
    """Median rate of the base, and for each other layout the median and in parentheses the range of its ratios."""
    cells = [f"{statistics.median(one[BASE] for one in rounds):,.0f}"]
    for name in list(LAYOUTS)[1:]:
        ratios = [one[name] / one[BASE] for one in rounds]
        cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    return f"| {streams} | " + " | ".join(cells) + " |"


def options_of(model: Path, layout: Layout) -> ServeOptions:
    fields = {"device": "cpu", "kv_cache_tokens": KV_TOKENS, "startup_cache": "off", "speculation": "off"}
    return ServeOptions.model_validate({"model": str(model), **fields, **dict(layout.options)})


def rate(runner: ModelRunner, model: Path, layout: Layout, streams: int, seconds: float) -> float:
    """Tokens a second of so many streams in the second half of so many seconds, or until one ends."""
    limits = msgspec.structs.replace(limits_of(options_of(model, layout), runner.facts), stages=layout.stages)
    scheduler, flying = Scheduler(limits), deque[LaunchedStep]()
    tokens = min(limits.max_model_len, KV_TOKENS // streams) - PROMPT_TOKENS - limits.block_size
    sampling = SamplingConfig(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    for number in range(streams):
        prompt = tuple((number * 31 + place) % 4000 + 3 for place in range(PROMPT_TOKENS))
        assert scheduler.submit(EngineRequest(request_id=str(number), prompt=prompt, sampling=sampling), 0.0) is None

    def now() -> float:
        """Where no time passes, no way is faster than the first."""
        return time.monotonic() if layout.chooses else 0.0

    begun, half, made, ended = time.monotonic(), 0.0, 0, False
    while (at := time.monotonic()) < begun + seconds and not ended:
        if not half and at >= begun + seconds / 2:
            half, made = at, 0
        while len(flying) < layout.stages and (plan := scheduler.plan(now())) is not None:
            flying.append(runner.launch(plan))
        outputs = scheduler.commit(runner.collect(flying.popleft()), now())
        made += sum(len(output.token_ids) for output in outputs)
        ended = any(output.finish_reason is not None for output in outputs)
    found = made / (time.monotonic() - (half or begun))
    while flying:  # what is in flight is for this scheduler's rows
        scheduler.commit(runner.collect(flying.popleft()), now())
    return found


if __name__ == "__main__":
    main()
