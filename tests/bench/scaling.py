"""Tokens a second from 1 to 32 streams against what memory and processors allow: `make bench-scaling`.

Each point is that many streams at once, a prompt of 64 and 128 tokens each; the rate is that of decode: streams over
the median time per token. The ceiling of a point is its step read at memory speed or multiplied at the measured rate,
whichever takes longer. Memory that is shared with others changes by half within seconds, so that a point is tried until
what was read right before and right after it agrees a few times; the median of those tries counts. Writes
docs/benchmarks/scaling.{json,svg} and the table in cpu.md with --write.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import torch

from bench import ceilings, page
from bench.cpu import FIGURES, PORT, processor
from bench.engines import ENGINES
from bench.limits import Ceilings, step
from bench.servers import serving
from bench.shapes import SHAPES, Work, work, written
from kvasir_runtime.bench.load_generator import TargetServer, models, run
from kvasir_runtime.bench.metrics import benchmark_metrics
from kvasir_runtime.bench.workload import Workload, requests

STREAMS: Final = (1, 2, 4, 8, 16, 32)
PROMPT, OUTPUT = 64, 128
STEADY: Final = 1.1
"""Between the rates before and after a try of which memory is said to have held still."""
ENOUGH, TRIES = 3, 10
"""Such tries that are enough, and tries at most."""
READS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """rate: tokens a second. before, after: bytes a second that were read around it."""

    rate: float
    before: float
    after: float

    @property
    def steady(self) -> bool:
        """Whether memory held still, as far as that can be seen."""
        return max(self.before, self.after) <= STEADY * min(self.before, self.after)


def main() -> int:
    """Prints a table for each shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="small,medium")
    parser.add_argument("--engine", default="Kvasir", choices=[name for name in ENGINES if name.startswith("Kvasir")])
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    shapes = {}
    for shape in asked.shapes.split(","):
        with tempfile.TemporaryDirectory() as folder:
            shapes[shape] = measured(shape, asked.engine, Path(folder))
        print(table(shape, shapes[shape]), flush=True)
    if asked.write:
        now = datetime.now(UTC).strftime("%Y-%m-%d")
        document = {"date": now, "processor": processor(), "engine": asked.engine, "shapes": shapes}
        tables = [table(name, points) for name, points in shapes.items()]
        page.write_scaling(FIGURES, document, tables)
    return 0


def measured(shape: str, engine_name: str, folder: Path) -> list[dict[str, Any]]:
    """A point for each number of streams."""
    engine, cost = ENGINES[engine_name], work(SHAPES[shape])
    dtype = torch.bfloat16 if engine.weight_bytes == 2 else torch.int8
    top, read = ceilings.measured(dtype), ceilings.reader()
    model = engine.prepared(written(folder / shape, SHAPES[shape]), folder)
    ready = f"http://127.0.0.1:{PORT}{engine.ready}"
    with serving(engine.command(model, PORT), ready, folder / "server.log", dict(engine.env)):
        return [point(streams, _tries(streams, read), cost, engine.weight_bytes, top) for streams in STREAMS]


def _tries(streams: int, read: Callable[[int], float]) -> list[Try]:
    """Those for which memory held still, or all where it never did."""
    found: list[Try] = []
    for seed in range(TRIES):
        before = read(READS)
        rate = asyncio.run(_rate(streams, seed))
        found.append(Try(rate=rate, before=before, after=read(READS)))
        if sum(one.steady for one in found) == ENOUGH:
            break
    return [one for one in found if one.steady] or found


def point(streams: int, tries: Sequence[Try], cost: Work, weight_bytes: float, top: Ceilings) -> dict[str, Any]:
    """The try whose share of the ceiling is the median one."""
    shares = []
    for one in tries:
        near = replace(top, read=max(one.before, one.after))
        ceiling = streams / step(streams, cost, weight_bytes, near, seen=streams * (PROMPT + OUTPUT / 2))
        shares.append((one.rate / ceiling, one.rate, near.read, ceiling))
    _, rate, read, ceiling = sorted(shares)[len(shares) // 2]
    multiplied = top.rate(streams) / (2 * cost.weights)
    bound = "products" if ceiling > 0.999 * multiplied else "memory"
    return {"streams": streams, "rate": rate, "ceiling": ceiling, "bound": bound, "read": read}


async def _rate(streams: int, seed: int) -> float:
    """Tokens a second of all streams while they decode. Raises RuntimeError when one failed."""
    url = f"http://127.0.0.1:{PORT}/v1"
    (model, *_) = await models(url, "")
    target = TargetServer(base_url=url, model=model, extra={"ignore_eos": True}, timeout_s=600)
    lengths = Workload(
        requests=streams, concurrency=streams, prompt_tokens=(PROMPT, PROMPT), output_tokens=(OUTPUT, OUTPUT)
    )
    found = benchmark_metrics(*await run(target, requests(lengths, 1000 * streams + seed), streams))
    if found.failed:
        raise RuntimeError(found.first_error)
    return streams / found.tpot_s.median


def table(shape: str, points: Sequence[dict[str, Any]]) -> str:
    """Markdown."""
    head = f"| {shape}, streams | " + " | ".join(str(p["streams"]) for p in points) + " |"
    rows = [head, "|---|" + "---|" * len(points)]
    rows.append("| tokens/s | " + " | ".join(f"{p['rate']:.0f}" for p in points) + " |")
    rows.append("| of the ceiling | " + " | ".join(f"{p['rate'] / p['ceiling']:.2f}" for p in points) + " |")
    rows.append("| bound by | " + " | ".join(p["bound"] for p in points) + " |")
    rows.append("| memory, GB/s | " + " | ".join(f"{p['read'] / 1e9:.0f}" for p in points) + " |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
