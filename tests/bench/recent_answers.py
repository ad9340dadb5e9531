"""What drafts from recent answers of a tenant bring and cost: `python -m bench.recent_answers`.

Scheduler and runner of the engine in this process, without clients. Streams of one tenant ask for one answer after the
other; what the answers are the workload says, and the model computes the same steps, whatever their tokens are. Drafts
are none, `auto` without recent answers and `auto` with them, in turns in one scheduler, so that a machine that becomes
slower does so for all three.
"""

import argparse
import json
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from bench import marked_page
from bench.cpu import processor
from bench.shapes import SHAPES, written
from bench.speculation import PAGE, table
from kvasir_api.hashes import block_root
from kvasir_api.options import ServeOptions
from kvasir_runtime.core.plan import StepPlan, StepResults
from kvasir_runtime.core.scheduler import Scheduler
from kvasir_runtime.core.speculation.speculation import Speculation
from kvasir_runtime.engine.start import limits_of
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.runner.startup.build import build
from kvasir_runtime.wire import EngineRequest, SamplingConfig

STREAMS: Final = (1, 4, 16)
PROMPT: Final = 32
LONGEST: Final = 1024
KEPT: Final = 64
WARM: Final = 24
"""Answers that were given before anything is measured."""
MARKS: Final = ("<!-- recent answers: written by python -m bench.recent_answers -->", "<!-- end of recent answers -->")
ROOT: Final = Path(__file__).parents[2]
CITIES: Final = ("Oslo", "Paris", "New York", "Lima", "Kyoto", "Cairo", "Rio", "Rome", "Delhi", "Quito")
ARGUMENTS: Final[dict[str, Sequence[str | int | bool]]] = {
    "from": CITIES,
    "to": CITIES,
    "date": tuple(f"2026-{month:02}-{day:02}" for month in range(1, 13) for day in range(1, 29)),
    "passengers": range(1, 6),
    "class": ("economy", "business"),
    "flexible": (True, False),
}
WORKLOADS: Final = ("tool calls", "edited code", "prose")


def tool_calls(chance: random.Random) -> Iterator[str]:
    """Calls of one function with other arguments."""
    while True:
        calls = [
            json.dumps(
                {"name": "book_flight", "arguments": {name: chance.choice(of) for name, of in ARGUMENTS.items()}}
            )
            for _ in range(chance.randint(1, 2))
        ]
        yield "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


def edited_code(chance: random.Random) -> Iterator[str]:
    """Functions of three files, with one word of each 25 replaced by another of its file."""
    files = [ROOT / "runtime" / "kvasir_runtime" / "core" / name for name in ("blocks.py", "host_tier.py", "plan.py")]
    texts = [re.findall(r"\w+|\s+|[^\w\s]", path.read_text()) for path in files]
    while True:
        text = chance.choice(texts)
        start = 300 * chance.randrange(len(text) // 300)
        yield "".join(chance.choice(text) if chance.random() < 0.04 else word for word in text[start : start + 300])


def prose(chance: random.Random) -> Iterator[str]:
    """Sections of the documentation, each once: nothing to draft from."""
    pages = [path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))]
    sections = [part for page in pages for part in re.split(r"\n#+ |\n\n", page) if len(part) > 300]
    chance.shuffle(sections)
    while True:
        yield from sections


TEXTS: Final[dict[str, Callable[[random.Random], Iterator[str]]]] = dict(
    zip(WORKLOADS, (tool_calls, edited_code, prose), strict=True)
)


class Words:
    """Ids of words: the most frequent of a tokenizer is not the point, that the same words are the same ids is."""

    def __init__(self, vocab_size: int) -> None:
        self._ids: dict[str, int] = {}
        self._vocab_size = vocab_size

    def ids(self, text: str) -> tuple[int, ...]:
        """Of words, spaces, each digit and each sign."""
        parts = re.findall(r"[A-Za-z_]+| ?[0-9]|\s+|[^\w\s]", text)[: LONGEST - PROMPT]
        return tuple(20 + self._ids.setdefault(part, len(self._ids)) % (self._vocab_size - 20) for part in parts)


@dataclass(slots=True)
class Answering:
    """Streams that ask for the next answer when one has ended."""

    runner: ModelRunner
    scheduler: Scheduler
    answers: Iterator[tuple[int, ...]]
    streams: int
    scripts: dict[str, tuple[int, ...]] = field(default_factory=dict)
    num_ended: int = 0

    def step(self) -> int:
        """Tokens of the next step."""
        while len(self.scripts) - self.num_ended < self.streams:
            self.ask()
        plan = self.scheduler.plan(time.monotonic())
        assert plan is not None
        results = self.scripted(plan, self.runner.collect(self.runner.launch(plan)))
        outputs = self.scheduler.commit(results, time.monotonic())
        self.num_ended += sum([output.finish_reason is not None for output in outputs])
        return sum([len(output.token_ids) for output in outputs])

    def ask(self) -> None:
        """One more request, with a prompt like no other."""
        name, script = str(len(self.scripts)), next(self.answers)
        prompt = tuple(random.Random(name).choices(range(20, 8000), k=PROMPT))
        sampling = SamplingConfig(temperature=0.0, max_tokens=len(script), ignore_eos=True)
        request = EngineRequest(request_id=name, prompt=prompt, sampling=sampling)
        assert self.scheduler.submit(request, time.monotonic()) is None
        self.scripts[name] = script

    def scripted(self, plan: StepPlan, results: StepResults) -> StepResults:
        """With the tokens of the answers, and the drafts kept that are right."""
        drafts = {chunk.row: chunk.drafts for chunk in plan.chunks}
        of_rows = {kind.sequence.row: kind for kind in self.scheduler._running.values()}
        sampled = []
        for one in results.sampled:
            kind = of_rows[one.row]
            rest = self.scripts[kind.request.request_id][len(kind.sequence.tokens) - PROMPT :]
            kept = 0
            while kept < len(drafts[one.row]) and drafts[one.row][kept] == rest[kept]:
                kept += 1
            sampled.append(msgspec.structs.replace(one, tokens=rest[: kept + 1]))
        return msgspec.structs.replace(results, sampled=tuple(sampled))

    def draft_with(self, speculation: Speculation) -> None:
        """From the next step on."""
        self.scheduler._speculation = speculation
        for kind in self.scheduler._running.values():
            kind.sequence.speculated = kind.sequence.answers = None

    def tokens_per_s(self, seconds: float) -> float:
        """Of all streams, for so long."""
        began, given = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            given += self.step()
        return given / (time.perf_counter() - began)


def ratios(runner: ModelRunner, workload: str, streams: int, seconds: float, rounds: int) -> list[list[float]]:
    """Of each turn tokens a second with recent answers by those without them, and by those without drafts, and the
    drafts that were kept.
    """
    words, chance = Words(runner.facts.vocab_size), random.Random(1)
    options = [
        ServeOptions(model="m", speculation=way, suffix_decoding_max_cached_requests=kept)
        for way, kept in (("off", 0), ("auto", 0), ("auto", KEPT))
    ]
    limits = [msgspec.structs.replace(limits_of(one, runner.facts), prefix_cache=False) for one in options]
    scheduler = Scheduler(limits[2], runner.facts.work)
    made = Answering(runner, scheduler, map(words.ids, TEXTS[workload](chance)), streams)
    ways = [Speculation(one, scheduler._counters) for one in limits]
    assert ways[2]._answers is not None
    recent = ways[2]._answers.of("", block_root(secret=limits[2].hash_salt))
    for _ in range(WARM):
        ways[2]._answers.add(recent, next(made.answers))
    found = []
    for turn in range(rounds + 1):
        speeds = []
        for way in ways:
            made.draft_with(way)
            speeds.append(made.tokens_per_s(seconds))
        if turn:  # in the first each way learns
            found.append([speeds[2] / speeds[1], speeds[2] / speeds[0], ways[2].state.acceptance_fraction])
    return found


def measured(shape: str, seconds: float, rounds: int) -> str:
    """The table."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        model = written(Path(folder) / "model", SHAPES[shape])
        options = ServeOptions(
            model=str(model),
            speculation="auto",
            kv_cache_tokens=max(STREAMS) * LONGEST,
            max_model_len=LONGEST,
            prefix_cache=False,
            startup_cache="off",
        )
        runner = build(options, lambda progress: None)
        for workload in WORKLOADS:
            for streams in STREAMS:
                found = ratios(runner, workload, streams, seconds, rounds)
                by_auto, by_off, kept = (sorted(column) for column in zip(*found, strict=True))
                cells = [f"{statistics.median(one):.2f} ({one[0]:.2f} to {one[-1]:.2f})" for one in (by_auto, by_off)]
                rows.append([workload, str(streams), *cells, f"{100 * statistics.median(kept):.0f} %"])
                print(*rows[-1], flush=True)
    head = ["answers", "streams", "by `auto` without recent answers", "by `off`", "drafts kept"]
    return f"Tokens a second with recent answers, median (least to most) of {rounds} turns:\n\n{table(head, rows)}"


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="small", choices=list(SHAPES))
    parser.add_argument("--seconds", type=float, default=0.5, help="of each turn")
    parser.add_argument("--rounds", type=int, default=12, help="turns of each way to draft")
    parser.add_argument("--write", action="store_true", help="keep the figures in docs/benchmarks/speculation.md")
    asked = parser.parse_args()
    found = measured(asked.shape, asked.seconds, asked.rounds)
    said = f"{asked.shape}, {processor()}, {time.strftime('%Y-%m-%d', time.gmtime())}\n\n{found}"
    print(f"\n{said}")
    if asked.write:
        PAGE.write_text(marked_page.replaced(PAGE.read_text(), MARKS, said))
    return 0


if __name__ == "__main__":
    sys.exit(main())
