"""Tokens a second from 1 to 32 streams against what memory and processors allow: `make bench-scaling`.

Each point is that many streams at once, a prompt of 64 and 128 tokens each; the rate is that of decode: streams over
the median time per token. The ceiling of a point is its step read at memory speed or multiplied at the measured rate,
whichever takes longer, at the better rate of those before and after the point. Writes
docs/benchmarks/scaling.{json,svg} and the table in cpu.md with --write.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import torch

from bench import ceilings, page
from bench.cpu import PORT, ROOT, processor
from bench.engines import BIN, ENGINES
from bench.limits import Ceilings, step
from bench.servers import serving
from bench.shapes import SHAPES, Work, work, written

STREAMS: Final = (1, 2, 4, 8, 16, 32)
PROMPT, OUTPUT = 64, 128


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
        run = {"date": now, "processor": processor(), "engine": asked.engine, "shapes": shapes}
        page.write_scaling(ROOT / "docs" / "benchmarks", run, [table(name, points) for name, points in shapes.items()])
    return 0


def measured(shape: str, engine_name: str, folder: Path) -> list[dict[str, Any]]:
    """A point for each number of streams."""
    engine, cost = ENGINES[engine_name], work(SHAPES[shape])
    dtype = torch.bfloat16 if engine.weight_bytes == 2 else torch.int8
    after = ceilings.measured(dtype)
    model = engine.prepared(written(folder / shape, SHAPES[shape]), folder)
    points = []
    ready = f"http://127.0.0.1:{PORT}{engine.ready}"
    with serving(engine.command(model, PORT), ready, folder / "server.log", dict(engine.env)):
        for streams in STREAMS:
            tpot = _tpot(streams, folder / "figures.json")
            before, after = after, ceilings.measured(dtype)
            top = before.or_better(after)
            limit = step(streams, cost, engine.weight_bytes, top, seen=streams * (PROMPT + OUTPUT / 2))
            point = {"streams": streams, "rate": streams / tpot, "ceiling": streams / limit}
            points.append(point | _bound(streams, top, cost))
    return points


def _bound(streams: int, top: Ceilings, cost: Work) -> dict[str, str]:
    read = 2 * cost.weights / top.read
    return {"bound": "memory" if read > 2 * cost.weights * streams / top.rate(streams) else "products"}


def _tpot(streams: int, out: Path) -> float:
    lengths = ["--prompt-tokens", str(PROMPT), "--output-tokens", str(OUTPUT)]
    load = ["--requests", str(streams), "--concurrency", str(streams), "--seed", str(streams)]
    url = ["--url", f"http://127.0.0.1:{PORT}", "--json", str(out)]
    subprocess.run([BIN / "kvasir", "bench", *url, *load, *lengths], check=True, stdout=subprocess.DEVNULL)
    return float(json.loads(out.read_text())["tpot_s"]["median"])


def table(shape: str, points: Sequence[dict[str, Any]]) -> str:
    """Markdown."""
    head = f"| {shape}, streams | " + " | ".join(str(p["streams"]) for p in points) + " |"
    rows = [head, "|---|" + "---|" * len(points)]
    rows.append("| tokens/s | " + " | ".join(f"{p['rate']:.0f}" for p in points) + " |")
    rows.append("| of the ceiling | " + " | ".join(f"{p['rate'] / p['ceiling']:.2f}" for p in points) + " |")
    rows.append("| bound by | " + " | ".join(p["bound"] for p in points) + " |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
