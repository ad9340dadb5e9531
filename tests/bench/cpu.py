"""How fast the engine is on this machine's processors, alone or beside its peers: `make bench`, `make bench-peers`.

Writes a random model of each shape that is asked for, starts each engine in turn (A B A B, a round at a time), and
sends the four workloads of `kvasir bench` through the HTTP API, the first two sampled as well; divides every figure by
what memory and processors allow: products as measured before and after that engine's turn, memory before and after
each workload. `--write` puts tables and a plot into docs/benchmarks.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import torch

from bench import ceilings, logits, page, results
from bench.engines import BIN, ENGINES, Engine
from bench.limits import Ceilings, crowd, prefill, step
from bench.servers import bare_import, peak_rss, serving, watching
from bench.shapes import SHAPES, Work, work, written
from kvasir_runtime.bench.workload import PRESETS, requests

FIGURES: Final = Path(__file__).parents[2] / "docs" / "benchmarks"
SAMPLED: Final = ("--temperature", "0.8", "--top-p", "0.95")
WORKLOADS: Final[Mapping[str, tuple[str, ...]]] = {
    "w1_sampled": SAMPLED,
    "w2_sampled": SAMPLED,
    "w1": (),
    "w2": (),
    "w3": (),
    "w4": (),
}
"""Presets of `kvasir bench`, and what each is sent with."""
OTHER_PROMPTS: Final = 1000
"""Between the seeds of a sampled workload and of the same one greedy, whose prompts would be cached."""
PORT: Final = 18600
SEQUENCES: Final = 32
NOISE_CORES: Final = 0.3
DTYPES: Final = {2: torch.bfloat16, 1: torch.int8}
"""By the bytes of a weight, whose products are the limit; fewer than 8 bits are multiplied as 8."""


def main() -> int:
    """Prints tables; returns 1 when an engine failed."""
    asked = _arguments()
    chosen = _chosen(asked.engines)
    failed = False
    said = {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "command": _command()}
    run: dict[str, Any] = {"processor": processor(), "shapes": {}}
    run["import_s"], run["import_rss"] = bare_import()
    print(results.bare(run["import_s"], run["import_rss"]), flush=True)
    for shape in asked.shapes.split(","):
        with tempfile.TemporaryDirectory() as folder:
            found, bad = measured(shape, chosen, asked, Path(folder))
        run["shapes"][shape], failed = said | found, failed or bad
    if asked.json:
        asked.json.write_text(json.dumps(run, indent=1) + "\n")
    if asked.write:
        page.write(FIGURES, run)
    else:
        for shape, found in run["shapes"].items():
            print(f"\n{shape}\n{_against_committed(run['processor'], shape, found)}")
    return int(failed)


def measured(
    shape: str, chosen: Sequence[Engine], asked: argparse.Namespace, folder: Path
) -> tuple[dict[str, Any], bool]:
    """Rounds of all engines on one model; and whether one failed."""
    model, cost = written(folder / shape, SHAPES[shape]), work(SHAPES[shape])
    tops = {size: ceilings.measured(dtype) for size, dtype in DTYPES.items()}
    print(f"{shape}: memory read {tops[2].read / 1e9:.1f} GB/s; products of 512 rows {_rates(tops)}", flush=True)
    rounds: dict[str, list[dict[str, float]]] = {engine.name: [] for engine in chosen}
    limits: dict[str, list[dict[str, float]]] = {engine.name: [] for engine in chosen}
    ready = {engine.name: engine.prepared(model, folder) for engine in chosen}
    failed: set[str] = set()
    reads: list[float] = []
    for number in range(asked.rounds):
        for engine in chosen:
            if engine.name in failed:
                continue
            try:
                figures, near = one_round(engine, ready[engine.name], number, asked.workloads.split(","), folder)
            except (RuntimeError, subprocess.CalledProcessError) as error:
                print(f"{engine.name}: {error}", file=sys.stderr, flush=True)
                failed.add(engine.name)
                continue
            size = 2 if engine.weight_bytes == 2 else 1
            before, tops[size] = tops[size], ceilings.measured(DTYPES[size])
            top = before.or_better(tops[size])
            rounds[engine.name].append(figures)
            limits[engine.name].append(limits_of(cost, engine, top, near))
            reads += near.values()
            rates = " ".join(f"{rate / 1e9:.0f}" for rate in near.values())
            print(f"[{number + 1}] {engine.name}: {_line(figures)}; memory {rates} GB/s", flush=True)
    rounds = {name: own for name, own in rounds.items() if own}
    typical = {name: results.medians(limits[name]) for name in rounds}
    print("\n".join(("", results.side_by_side(rounds, typical), "", results.of_greedy(rounds))))
    return {"read": statistics.median(reads or [tops[2].read]), "rounds": rounds, "limits": typical}, bool(failed)


def one_round(
    engine: Engine, model: Path, number: int, workloads: Sequence[str], folder: Path
) -> tuple[dict[str, float], dict[str, float]]:
    """Start it, send the workloads, stop it. Prompts are others in every round.

    Returns the figures, and by workload the bytes a second that memory gave right before or right after it, the better.
    """
    command, log = engine.command(model, PORT), folder / "server.log"
    ready = f"http://127.0.0.1:{PORT}{engine.ready}"
    documents: dict[str, dict[str, Any]] = {}
    read = ceilings.reader()
    with serving(command, ready, log, dict(engine.env)) as server:
        ready_rss = peak_rss(server.process.pid)
        with watching(server.process) as seen:
            reads = [read(ceilings.REPEATS)]
            for workload in workloads:
                documents[workload] = _sent(workload, number, folder / "figures.json")
                reads.append(read(ceilings.REPEATS))
        found = results.of_round(documents, server.start_s, ready_rss, max(ready_rss, seen.peak_rss))
        if engine.name.startswith("Kvasir"):
            found["logits"] = _checked(engine, model, number)
    if seen.foreign_cores > NOISE_CORES:
        print(f"    others used {seen.foreign_cores:.1f} cores meanwhile: do not trust this round", flush=True)
    return found, {workload: max(reads[i : i + 2]) for i, workload in enumerate(workloads)}


def _sent(workload: str, seed: int, out: Path) -> dict[str, Any]:
    """What the client says of one workload."""
    options = WORKLOADS[workload]
    how = [
        "--workload",
        workload.removesuffix("_sampled"),
        "--seed",
        str(seed + OTHER_PROMPTS * bool(options)),
        *options,
    ]
    client = subprocess.run(
        [BIN / "kvasir", "bench", "--url", f"http://127.0.0.1:{PORT}", *how, "--json", out],
        check=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    if client.returncode:
        raise RuntimeError(f"{workload} failed: {client.stderr[-300:]}")
    document: dict[str, Any] = json.loads(out.read_text())
    return document


def _checked(engine: Engine, model: Path, seed: int) -> float:
    """The error of what was just measured. Raises RuntimeError when it is more than rounding."""
    error, allowed = logits.deviation(f"http://127.0.0.1:{PORT}", model, seed), logits.ALLOWED[engine.precision]
    if not error <= allowed:
        raise RuntimeError(
            f"the logits are wrong: {error:.2f} times the error of bfloat16, at most {allowed} is rounding"
        )
    return error


def limits_of(cost: Work, engine: Engine, top: Ceilings, reads: Mapping[str, float]) -> dict[str, float]:
    """By figure: what the machine allows this precision, in seconds or tokens a second. reads: memory's by workload."""
    size, single = engine.weight_bytes, PRESETS["w1"]
    crowded, sharing = PRESETS["w2"], PRESETS["w3"]
    near = {workload: replace(top, read=reads.get(workload, top.read)) for workload in WORKLOADS}
    drawn = sum(task.output_tokens for task in requests(crowded, 0))
    seen = single.prompt_tokens[0] + single.output_tokens[0] / 2
    return {
        "w1_sampled_tpot": step(1, cost, size, near["w1_sampled"], seen),
        "w2_sampled_rate": drawn / crowd(requests(crowded, 0), 0, SEQUENCES, cost, size, near["w2_sampled"]),
        "w1_tpot": step(1, cost, size, near["w1"], seen),
        "w1_ttft": prefill(single.prompt_tokens[0], 0, cost, top),
        "w2_rate": drawn / crowd(requests(crowded, 0), 0, SEQUENCES, cost, size, near["w2"]),
        "w3_wall": crowd(requests(sharing, 0), sharing.shared_tokens, sharing.concurrency, cost, size, near["w3"]),
        "w4_cold": prefill(PRESETS["w4"].shared_tokens + 64, 0, cost, top),
    }


def processor() -> str:
    """What /proc says of this machine, with the instructions that matter here."""
    text = Path("/proc/cpuinfo").read_text()
    fields = dict(line.split(":", 1) for line in text.split("\n\n")[0].splitlines() if ":" in line)
    named = {key.strip(): value.strip() for key, value in fields.items()}
    flags = named.get("flags", "").split()
    known = [
        flag for flag in ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8") if flag in flags
    ]
    return f"{named.get('model name', 'unknown')}, {len(os.sched_getaffinity(0))} cores, {' '.join(known)}"


def _against_committed(named: str, shape: str, found: Mapping[str, Any]) -> str:
    """Beside the same processor, or the one that was measured last."""
    runs = sorted(page.committed(FIGURES), key=lambda run: run["processor"] != named)
    runs = [run for run in runs if "Kvasir" in run["shapes"].get(shape, {}).get("rounds", {})]
    if not runs or "Kvasir" not in found["rounds"]:
        return "no committed figures to compare with"
    return f"before: {runs[0]['processor']}\n" + results.compared(
        _fractions(found), _fractions(runs[0]["shapes"][shape])
    )


def _fractions(found: Mapping[str, Any]) -> dict[str, float]:
    values, limits = results.medians(found["rounds"]["Kvasir"]), found["limits"]["Kvasir"]
    return {
        figure.key: results.goodness(figure, values[figure.key], limits[figure.key])
        for figure in results.FIGURES
        if figure.key in values and figure.key in limits
    }


def _chosen(names: str) -> list[Engine]:
    if names == "all":
        missing = {engine.name: engine.absent() for engine in ENGINES.values() if engine.absent()}
        for name, why in missing.items():
            print(f"without {name}: {why}", flush=True)
        return [engine for engine in ENGINES.values() if engine.name not in missing]
    chosen = []
    for name in names.split(","):
        engine = ENGINES.get(name)
        if engine is None:
            raise SystemExit(f"no engine {name!r}; there are {', '.join(ENGINES)}")
        if engine.absent():
            raise SystemExit(f"{name}: {engine.absent()}")
        chosen.append(engine)
    return chosen


def _rates(tops: Mapping[int, Ceilings]) -> str:
    return f"{tops[2].rate(512) / 1e9:.0f} GFLOP/s in bf16, {tops[1].rate(512) / 1e9:.0f} GOP/s in int8"


def _line(figures: Mapping[str, float]) -> str:
    known = [figure for figure in results.FIGURES if figure.key in figures]
    return ", ".join(f"{figure.key} {figures[figure.key] * figure.scale:.3g} {figure.unit}" for figure in known)


def _command() -> str:
    return "PYTHONPATH=tests python -m bench.cpu " + " ".join(f"'{one}'" if " " in one else one for one in sys.argv[1:])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default="Kvasir", help=f"all, or some of {', '.join(ENGINES)}")
    parser.add_argument("--shapes", default="small,medium", help=f"some of {', '.join(SHAPES)}")
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path, help="keep what was measured here")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks/cpu.json, the tables and the plot")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
