"""What drafts bring and cost on this machine: `make bench-speculation`.

Scheduler and runner of the engine in this process, without clients. The oracle drafts in every step, and whether a
draft is right is drawn by the rate of the cell: the model computes the same steps, whatever their tokens are. Cells of
`auto` run with drafts and without in turns, in one scheduler, so that a machine that becomes slower does so for both.
With --one-thread seconds are those of the processor, which depend less on what else runs.
"""

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

from bench import marked_page
from bench.cpu import processor
from bench.shapes import SHAPES, written
from kvasir_api.options import ServeOptions
from kvasir_runtime.core.plan import StepPlan, StepResults
from kvasir_runtime.core.scheduler import Scheduler
from kvasir_runtime.core.speculation.drafters import Draft, Drafter, ModelDrafter, TokenHistory
from kvasir_runtime.engine.start import limits_of
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.runner.startup.build import build
from kvasir_runtime.wire import EngineRequest, SamplingConfig

STREAMS: Final = (1, 4, 16, 64)
RATES: Final = (0.0, 0.3, 0.6, 0.8, 0.9)
DRAFTS: Final = (0, 1, 2, 3, 4, 6, 8)
DRAFT_LAYERS: Final = 8
"""The draft model has one in so many of the model's layers."""
GUESS: Final = 5
"""What the oracle drafts. No prompt has it, and hardly an answer."""
PROMPT: Final = 32
LONGEST: Final = 2048
MOST_EACH: Final = LONGEST - PROMPT - 128
"""Tokens of a stream that are measured, less than end it."""
PAGE: Final = Path(__file__).parents[2] / "docs" / "benchmarks" / "speculation.md"
MARKS: Final = ("<!-- measured: written by make bench-speculation -->", "<!-- end of measured -->")

Clock = Callable[[], float]


@dataclass(slots=True)
class OracleDrafter:
    """Drafts most tokens a step at most; what is right is not its to know."""

    most: int = 1 << 10

    def propose(self, history: TokenHistory, most: int) -> Draft:
        """As in `Drafter`."""
        count = min(most, self.most)
        return Draft((GUESS,) * count, (1.0,) * count, 8)


@dataclass(slots=True)
class Decoding:
    """So many streams that decode. rate: the probability that a draft is right where those before it were. drafted:
    drafts of the last step.
    """

    runner: ModelRunner
    scheduler: Scheduler
    rate: float
    clock: Clock
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    drafted: int = 0

    def step(self) -> tuple[float, int, bool]:
        """Seconds and tokens of the next step, and whether it was of nothing but decoding."""
        began = self.clock()
        plan = self.scheduler.plan(began)
        assert plan is not None
        results = self.judged(plan, self.runner.collect(self.runner.launch(plan)))
        outputs = self.scheduler.commit(results, self.clock())
        num_tokens = sum(len(output.token_ids) for output in outputs)
        self.drafted = sum(len(chunk.drafts) for chunk in plan.chunks)
        decodes = all(chunk.num_tokens - len(chunk.drafts) == 1 for chunk in plan.chunks)
        return self.clock() - began, num_tokens, decodes

    def judged(self, plan: StepPlan, results: StepResults) -> StepResults:
        """With the drafts kept that the rate says."""
        drafts = {chunk.row: chunk.drafts for chunk in plan.chunks if chunk.drafts}
        sampled = []
        for one in results.sampled:
            drafted = drafts.get(one.row, ())
            accepted, drafted = 0, drafted[: len(drafted) - one.undrafted]
            if (
                not drafted and self.chance.random() < self.rate
            ):  # the oracle's guess is compared where it is not verified
                one = msgspec.structs.replace(one, tokens=(GUESS,))
            while accepted < len(drafted) and self.chance.random() < self.rate:
                accepted += 1
            tokens = (*drafted[:accepted], one.tokens[0])
            sampled.append(msgspec.structs.replace(one, tokens=tokens, accepted=accepted))
        return msgspec.structs.replace(results, sampled=tuple(sampled))

    def run(self, seconds: float, tokens_each: int) -> tuple[float, int]:
        """Seconds and tokens, until either is reached."""
        spent, given = 0.0, 0
        most = tokens_each * len(self.scheduler._running)
        while spent < seconds and given < most:
            elapsed_s, num_tokens, _ = self.step()
            spent, given = spent + elapsed_s, given + num_tokens
        return spent, given


def decoding(
    runner: ModelRunner, options: ServeOptions, streams: int, rate: float, drafter: Drafter, clock: Clock
) -> Decoding:
    """Streams behind their prompts."""
    scheduler = Scheduler(limits_of(options, runner.facts), runner.facts.work, drafter)
    sampling = SamplingConfig(temperature=0.0, max_tokens=LONGEST - PROMPT, ignore_eos=True)
    for number in range(streams):
        prompt = tuple(random.Random(number).choices(range(20, 400), k=PROMPT))
        request = EngineRequest(request_id=str(number), prompt=prompt, sampling=sampling)
        assert scheduler.submit(request, clock()) is None
    made = Decoding(runner, scheduler, rate, clock)
    while not (made.step()[2] and len(scheduler._running) == streams):
        pass
    return made


def with_and_without(made: Decoding, seconds: float, rounds: int) -> float:
    """Tokens a second with drafts by those without, the median of turns; what is learned first is left out."""
    speculation = made.scheduler._speculation
    drafter, ratios = speculation._drafter, []
    made.run(seconds, 40)
    plain_each = min(100, MOST_EACH // (3 * rounds))
    for _ in range(rounds):
        spent, given = made.run(seconds, 2 * plain_each)
        speculation._drafter = None
        plain_s, plain = made.run(seconds, plain_each)
        speculation._drafter = drafter
        ratios.append(given / spent / (plain / plain_s))
    return statistics.median(ratios)


def costs(
    runner: ModelRunner, options: ServeOptions, streams: int, seconds: float, clock: Clock
) -> tuple[float, list[float | None]]:
    """Median seconds of a step without drafts, and by what so many DRAFTS of each stream multiply them: the median of
    steps in turns, each by the one without that came before it; None where a step verifies fewer.
    """
    drafter = OracleDrafter()
    made = decoding(runner, options, streams, 0.0, drafter, clock)
    steps, most = {count: list[float]() for count in DRAFTS}, 0
    began = clock()
    while len(steps[0]) * len(DRAFTS) < MOST_EACH and (clock() - began < len(DRAFTS) * seconds or len(steps[0]) < 9):
        for drafter.most in DRAFTS:
            steps[drafter.most].append(made.step()[0])
            most = max(most, made.drafted)
    plain = steps[0]
    ratios = ([mine / without for mine, without in zip(steps[count], plain, strict=True)] for count in DRAFTS[1:])
    medians = map(statistics.median, ratios)
    return statistics.median(plain), [
        one if count * streams <= most else None for count, one in zip(DRAFTS[1:], medians, strict=True)
    ]


def break_even(relative: float, count: int) -> str:
    """The rate at which count drafts pay, by the seconds of such a step in those of one without."""
    low, high = 0.0, 1.0
    if relative >= 1 + count:
        return "never"
    for _ in range(30):
        rate = (low + high) / 2
        tokens = sum(rate**place for place in range(count + 1))
        low, high = (rate, high) if tokens < relative else (low, rate)
    return f"{100 * high:.0f} %"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Of Markdown."""
    return "\n".join(["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)])


def measured(asked: argparse.Namespace, clock: Clock) -> str:
    """The tables of one model."""
    with tempfile.TemporaryDirectory() as folder:
        shape = SHAPES[asked.shape]
        model = written(Path(folder) / "model", shape)
        auto = ServeOptions(
            model=str(model),
            speculation="auto",
            kv_cache_tokens=64 * LONGEST,
            max_model_len=LONGEST,
            prefix_cache=False,
            startup_cache="off",
        )
        engines: list[tuple[str, ModelRunner, ServeOptions, Drafter]] = []
        engines.append(("auto", build(auto, lambda progress: None), auto, OracleDrafter(asked.drafts)))
        if not asked.no_model:
            small = replace(shape, num_layers=max(1, shape.num_layers // DRAFT_LAYERS))
            with_model = auto.model_copy(update={"speculation": str(written(Path(folder) / "draft model", small))})
            engines.append(("model", build(with_model, lambda progress: None), with_model, ModelDrafter()))
        steps, gains = list[list[str]](), {name: list[list[str]]() for name, *_ in engines}
        for streams in asked.streams:
            steps.append([str(streams), *cost_cells(engines[0][1], auto, streams, asked.seconds, clock)])
            print("step:", *steps[-1], flush=True)
            for name, runner, options, drafter in engines:
                ratios = [
                    with_and_without(
                        decoding(runner, options, streams, rate, drafter, clock), asked.seconds, asked.rounds
                    )
                    for rate in RATES
                ]
                gains[name].append([str(streams), *(f"{ratio:.2f}" for ratio in ratios)])
                print(f"{name}:", *gains[name][-1], flush=True)
        head = ["streams", *(f"{100 * rate:.0f} % right" for rate in RATES)]
        said = (
            f"Seconds of a step in those of one without drafts, and in brackets the acceptance from which on they"
            f" pay; – where a step verifies fewer:\n\n"
            f"{table(['streams', 'ms without', *(f'{count} drafts' for count in DRAFTS[1:])], steps)}\n\n"
            f"Tokens a second with `auto` by those with `off`:\n\n{table(head, gains['auto'])}"
        )
        for _, runner, _, _ in engines[1:]:
            share = 100 * runner.facts.drafter.weights_bytes / runner.facts.weights_bytes
            said += f"\n\nThe same with a draft model of {share:.0f} % of the weights:\n\n{table(head, gains['model'])}"
        return said


def cost_cells(runner: ModelRunner, options: ServeOptions, streams: int, seconds: float, clock: Clock) -> list[str]:
    """Of the first table: the milliseconds of a step without drafts, then what those with drafts take of it."""
    plain_s, ratios = costs(runner, options.model_copy(update={"speculation": "suffix"}), streams, seconds, clock)
    relative = zip(ratios, DRAFTS[1:], strict=True)
    cells = ["–" if x is None else f"{x:.2f} ({break_even(x, count)})" for x, count in relative]
    return [f"{1000 * plain_s:.2f}", *cells]


def main() -> int:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="small", choices=list(SHAPES))
    parser.add_argument("--seconds", type=float, default=0.8, help="of each turn")
    parser.add_argument("--rounds", type=int, default=3, help="turns with drafts and without")
    parser.add_argument("--streams", type=int, nargs="+", default=STREAMS, help="at once")
    parser.add_argument("--drafts", type=int, default=1 << 10, help="of a sequence, at most, that the oracle has")
    parser.add_argument("--no-model", action="store_true", help="leave out the table of a draft model")
    parser.add_argument("--write", action="store_true", help="keep the figures in docs/benchmarks/speculation.md")
    parser.add_argument("--one-thread", action="store_true", help="by the processor seconds of one thread")
    asked = parser.parse_args()
    clock, by = time.perf_counter, ""
    if asked.one_thread:
        os.environ["OMP_NUM_THREADS"] = "1"
        clock, by = time.thread_time, ", by processor seconds of 1 thread"
    tables = measured(asked, clock)
    said = f"{asked.shape}, {processor()}, {time.strftime('%Y-%m-%d', time.gmtime())}{by}\n\n{tables}"
    print(f"\n{said}")
    if asked.write:
        PAGE.write_text(marked_page.replaced(PAGE.read_text(), MARKS, said))
    return 0


if __name__ == "__main__":
    sys.exit(main())
