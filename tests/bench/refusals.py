"""Wrong refusals by deadline at twice the load, for mixes of prompts, on the real scheduler in virtual time.

python -m bench.refusals prints the rows of the table in docs/scheduling.md, and those of further mixes. The numbers do
not depend on the machine: seeds are fixed and steps cost what a formula says.
"""

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from fakes.overload import Callers, capacity, simulated
from fakes.simulated_engine import SimulatedEngine
from kvasir_api.state import RuntimeState

LOAD: Final = 2.0
SECONDS: Final = 120.0
WARM_S: Final = 10.0
"""Calls before are not counted as answered or late."""
SEEDS: Final = (11, 12, 13)
Sizes = Callable[[random.Random], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """words: of the prompts, in tokens. mean_answer: in tokens. ttft_s: the objective."""

    rows: int
    words: str
    sizes: Sizes
    mean_answer: int
    ttft_s: float


def short(draw: random.Random) -> int:
    return draw.randint(50, 350)


def wide(draw: random.Random) -> int:
    return draw.randint(100, 1500)


def two_sizes(draw: random.Random) -> int:
    return 1500 if draw.random() < 0.3 else 100


def log_normal(draw: random.Random) -> int:
    return max(16, min(3600, int(draw.lognormvariate(5.5, 1.0))))


def long_tail(draw: random.Random) -> int:
    return draw.randint(1500, 4000) if draw.random() < 0.1 else short(draw)


TENTH: Final = "a tenth 1,500 to 4,000, others 50 to 350"
MIXES: Final = (
    Mix(rows=16, words="50 to 350", sizes=short, mean_answer=40, ttft_s=2.0),
    Mix(rows=64, words="50 to 350", sizes=short, mean_answer=40, ttft_s=2.0),
    Mix(rows=64, words="50 to 350", sizes=short, mean_answer=10, ttft_s=2.0),
    Mix(rows=64, words="100 to 1,500", sizes=wide, mean_answer=10, ttft_s=2.0),
    Mix(rows=64, words="100 to 1,500", sizes=wide, mean_answer=10, ttft_s=5.0),
    Mix(rows=64, words="three of ten 1,500, others 100", sizes=two_sizes, mean_answer=10, ttft_s=2.0),
    Mix(rows=64, words="log-normal, median 245", sizes=log_normal, mean_answer=10, ttft_s=2.0),
    Mix(rows=64, words="log-normal, median 245", sizes=log_normal, mean_answer=10, ttft_s=5.0),
    Mix(rows=64, words=TENTH, sizes=long_tail, mean_answer=10, ttft_s=2.0),
    Mix(rows=64, words=TENTH, sizes=long_tail, mean_answer=10, ttft_s=5.0),
)


class MixedCallers(Callers):
    """Whose prompts have the sizes of a mix."""

    def __init__(self, engine: SimulatedEngine, *, sizes: Sizes, **options: Any) -> None:
        super().__init__(engine, **options)
        self._sizes = sizes

    def prompt_tokens(self, draw: random.Random) -> int:
        """Of one more call."""
        return self._sizes(draw)


def row(mix: Mix) -> str:
    """Of the table: what of all seeds was refused wrongly, and answered late."""
    made = functools.partial(MixedCallers, sizes=mix.sizes)
    per_s = LOAD * capacity(mix.rows, mean_answer=mix.mean_answer, made=made)
    refused = wrong = answered = late = 0
    for seed in SEEDS:
        engine = simulated(max_sequences=mix.rows, seed=seed)
        callers = made(engine, ttft_s=mix.ttft_s, max_retries=0, mean_answer=mix.mean_answer, seed=seed)
        callers.load(per_s, 0.0, SECONDS)
        engine.run(until=SECONDS + 20.0)
        ttft = engine.scheduler.report(RuntimeState()).ttft
        refused, wrong = refused + ttft.refused, wrong + ttft.wrongly_refused
        calls = [call for call in callers.between(WARM_S, SECONDS) if call.succeeded]
        answered, late = answered + len(calls), late + sum(not call.was_in_time for call in calls)
    load = f"{mix.words}, {mix.mean_answer}, {mix.ttft_s:g} s"
    return f"| {mix.rows} | {load} | {refused} | {100 * wrong / refused:.1f} % | {100 * late / answered:.1f} % |"


if __name__ == "__main__":
    print("| Rows | Prompts in tokens, mean answer, objective | Refused | Refused wrongly | Late answers |")
    print("|---|---|---|---|---|")
    for mix in MIXES:
        print(row(mix), flush=True)
