"""What dividing the tokens of a long prompt among ranks could gain: `PYTHONPATH=tests python -m bench.long_prompts`.

One prompt is computed by two ranks, of one thread each, and by one process of two threads, in turns. Norms are all that
both ranks compute of each token, so half of their share is what tokens divided between the sums (Korthikanti et al.
2022) could save. One process divides all work among its threads and exchanges nothing, so its time is a bound for
processes that have a part of the tokens each, with all weights (context parallelism, Liu et al. 2023).
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bench.shapes import SHAPES, written
from kvasir_api.options import ServeOptions
from kvasir_runtime.core.scheduler import Scheduler
from kvasir_runtime.engine.start import limits_of
from kvasir_runtime.kernels.backends import ops_for
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.runner.startup.build import build
from kvasir_runtime.wire import EngineRequest, SamplingConfig


class Timed:
    """An operation, and the seconds that it took of rank 0."""

    def __init__(self, operation: Callable[..., Any]) -> None:
        self.seconds = 0.0
        self._operation = operation

    def __call__(self, *given: Any) -> Any:
        begun = time.perf_counter()
        found = self._operation(*given)
        self.seconds += time.perf_counter() - begun
        return found


def main() -> None:
    """A table of seconds: median, least and most."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="small", choices=SHAPES)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=32_768, help="tokens")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    shape = replace(SHAPES[given.shape], num_layers=given.layers, max_position_embeddings=given.prompt + 64)
    ops = ops_for(torch.device("cpu"))
    norms = Timed(ops.rms_norm)
    with tempfile.TemporaryDirectory(prefix="kvasir-bench-long-prompts-") as home:
        model = written(Path(home) / given.shape, shape)
        options = {ranks: options_of(model, ranks, given.prompt) for ranks in (2, 1)}
        runners = {
            2: build(options[2], lambda _: None, ops=replace(ops, rms_norm=norms)),
            1: build(options[1], lambda _: None),
        }
        shares, times = list[float](), {2: list[float](), 1: list[float]()}
        for _ in range(given.rounds):
            for ranks, runner in runners.items():
                norms.seconds = 0.0
                times[ranks].append(seconds(runner, options[ranks], given.prompt))
                if ranks == 2:
                    shares.append(norms.seconds / times[2][-1])
    print(f"| {given.prompt:,} tokens, {given.layers} layers of {given.shape} | median (least to most) |\n|---|---|")
    print(f"| two ranks, s | {described(times[2])} |\n| one process, two threads, s | {described(times[1])} |")
    print(f"| share of norms at rank 0, % | {described([100 * share for share in shares])} |")
    ratios = [one / two for one, two in zip(times[1], times[2], strict=True)]
    print(f"| one process beside two ranks | {described(ratios)} |")


def described(numbers: list[float]) -> str:
    return f"{statistics.median(numbers):.2f} ({min(numbers):.2f} to {max(numbers):.2f})"


def options_of(model: Path, ranks: int, prompt: int) -> ServeOptions:
    fields = {"device": "cpu", "kv_cache_tokens": prompt + 64, "startup_cache": "off", "speculation": "off"}
    limits = {"max_batch_tokens": 512, "max_model_len": prompt + 64, "prefix_cache": False}
    return ServeOptions.model_validate({"model": str(model), "tensor_parallel_size": ranks, **fields, **limits})


def seconds(runner: ModelRunner, options: ServeOptions, prompt: int) -> float:
    """Until the first token."""
    scheduler = Scheduler(limits_of(options, runner.facts))
    tokens = tuple((place * 7919) % 4000 + 3 for place in range(prompt))
    sampling = SamplingConfig(temperature=0.0, max_tokens=1, ignore_eos=True)
    assert scheduler.submit(EngineRequest(request_id="0", prompt=tokens, sampling=sampling), 0.0) is None
    begun = time.perf_counter()
    while (plan := scheduler.plan(0.0)) is not None:
        scheduler.commit(runner.collect(runner.launch(plan)), 0.0)
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
