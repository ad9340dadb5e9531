"""Answers that copy their prompts, beside peers with lookups of their own: `python -m bench.copying`.

One model for all (`copying_model`), in 16 bits: of Kvasir the checkpoint, of peers a GGUF file of it. All engines, with
drafts and without, are started at once and sent the same prompts of ids, one engine after the other in each round, so
that a machine that becomes slower does so for all; figures are ratios within a round. The seconds are those from the
first token to the end; with --threads those of the processor that a server has used, which depend little on what else
runs, so that such figures can be taken on a busy machine: they are of a few threads, 1 best, that wait for no other
ones. Peers take part where KVASIR_BENCH_OPENVINO_PYTHON names a python with openvino-genai,
tokenizers and aiohttp, and KVASIR_BENCH_LLAMA_CPP_PYTHON one with xllamacpp.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx

from bench import copying_model, marked_page
from bench.cpu import processor
from bench.engines import BIN, HERE
from bench.servers import serving, tree_s
from bench.shapes import SHAPES, tokenizer_of
from bench.speculation import PAGE, table
from fakes import ggufs

MARKS: Final = ("<!-- copying: written by python -m bench.copying -->", "<!-- end of copying -->")
PORT: Final = 18_700
TOKENS: Final = 384
WORK: Final = {"edit": copying_model.edit, "extract": copying_model.extract}
SETTINGS: Final = {"OpenVINO": ("3,5",), "llama.cpp": ("12 48", "3 8")}
"""Ids that are looked for and drafted: those of the documentation or the program itself first. The best counts."""

Rates = dict[str, list[float]]
"""Tokens a second of each round, by work and streams."""
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """An engine as it is started. drafts: "" for none."""

    engine: str
    drafts: str
    port: int
    command: Sequence[str]
    ready: str = "/health"
    env: Mapping[str, str] = field(default_factory=dict)


def started(model: Path, folder: Path) -> list[Started]:
    """All that take part here, in the order in which they take turns."""
    found = [_kvasir(model, PORT, "off"), _kvasir(model, PORT + 2, "auto")]
    if python := os.environ.get("KVASIR_BENCH_OPENVINO_PYTHON", ""):
        file = model / "model-f16.gguf"
        ggufs.write(model, file, kind="F16", general__file_type=1)
        for lookup in ("", *SETTINGS["OpenVINO"]):
            port = PORT + 2 * len(found)
            command = [python, str(HERE / "openvino_server.py"), str(file), str(port)]
            env = {"KVASIR_BENCH_OPENVINO_LOOKUP": lookup}
            found.append(
                Started(engine="OpenVINO", drafts=lookup, port=port, command=command, ready="/v1/models", env=env)
            )
    if python := os.environ.get("KVASIR_BENCH_LLAMA_CPP_PYTHON", ""):
        file = folder / "model-bf16.gguf"
        ggufs.write(model, file, kind="BF16", general__file_type=32)
        for lookup in ("", *SETTINGS["llama.cpp"]):
            port = PORT + 2 * len(found)
            command = [python, str(HERE / "llama_cpp_server.py"), str(file), str(port), *lookup.split()]
            found.append(Started(engine="llama.cpp", drafts=lookup, port=port, command=command))
    return found


def _kvasir(model: Path, port: int, speculation: str) -> Started:
    ports = ["--port", str(port), "--ops-port", str(port + 1)]
    options = ["--kv-cache-tokens", "16384", "--speculation", speculation, "--dtype", "bfloat16"]
    command = [str(BIN / "kvasir"), "serve", str(model), *ports, *options]
    return Started(engine="Kvasir", drafts="" if speculation == "off" else speculation, port=port, command=command)


async def answered(
    client: httpx.AsyncClient, clock: Clock, port: int, prompt: Sequence[int], text: str
) -> tuple[float, float]:
    """When its first token came, and when the answer ended. Raises RuntimeError where it is not this text."""
    body: dict[str, Any] = {"model": "model", "prompt": list(prompt), "max_tokens": TOKENS, "temperature": 0.0}
    body |= {"stream": True, "ignore_eos": True}
    first, last, parts = 0.0, "", list[str]()
    async with client.stream("POST", f"http://127.0.0.1:{port}/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith("data:") and line != "data: [DONE]":
                first, last = first or clock(), line
                parts += [choice["text"] for choice in json.loads(line[5:]).get("choices", ())]
    if (given := "".join(parts)) != text:
        raise RuntimeError(f"port {port} answered …{given[-80:]!r}, and not …{text[-80:]!r}; its last event: {last}")
    return first, clock()


async def turn(client: httpx.AsyncClient, clock: Clock, port: int, number: int, streams: Sequence[int]) -> Rates:
    """One engine's part of a round: all work with all streams. number: prompts are others in every round."""
    found: Rates = {}
    shape = SHAPES["small"]
    ids, tokenizer = copying_model.chain(shape.vocab_size), tokenizer_of(shape)
    for name, prompt_of in WORK.items():
        for count in streams:
            requests = []
            for start in range(1 + 1000 * number, 1 + 1000 * number + 400 * count, 400):
                text = tokenizer.decode([ids[(start + place) % len(ids)] for place in range(TOKENS)])
                requests.append(answered(client, clock, port, prompt_of(ids, start, TOKENS, start), text))
            ended = await asyncio.gather(*requests)
            spent = max(end for _, end in ended) - min(first for first, _ in ended)
            found[f"{name}, {count}"] = [count * (TOKENS - 1) / spent]
    return found


async def in_turns(
    engines: Sequence[Started], clocks: Sequence[Clock], rounds: int, streams: Sequence[int]
) -> list[Rates]:
    """Of each engine, by the seconds of its clock. What is learned and compiled in a first round is left out; each
    round begins with another. A peer whose server ends is left out: with some lookups llama.cpp's does.
    """
    found, ended = list[Rates]({} for _ in engines), set[int]()
    async with httpx.AsyncClient(timeout=300) as client:
        for number in range(rounds + 1):
            for place in range(len(engines)):
                at = (place + number) % len(engines)
                if at in ended:
                    continue
                try:
                    rates = await turn(client, clocks[at], engines[at].port, number, streams)
                except httpx.TransportError as error:
                    if engines[at].engine == "Kvasir":
                        raise
                    print(number, engines[at].engine, engines[at].drafts, "ended:", error, flush=True)
                    ended.add(at)
                    found[at] = {}
                    continue
                print(number, engines[at].engine, engines[at].drafts, rates, flush=True)
                for work, of_round in rates.items() if number else ():
                    found[at].setdefault(work, []).extend(of_round)
    return found


def measured(rounds: int, threads: int, streams: Sequence[int]) -> dict[tuple[str, str], Rates]:
    """By engine and drafts. threads: of each, 0 for as many as there are processors."""
    env = {"OMP_NUM_THREADS": str(threads), "KVASIR_BENCH_THREADS": str(threads)} if threads else {}
    with tempfile.TemporaryDirectory() as name, ExitStack() as running:
        folder = Path(name)
        engines = started(copying_model.written(folder / "model", "small"), folder)
        clocks = list[Clock]()
        for place, one in enumerate(engines):
            url = f"http://127.0.0.1:{one.port}{one.ready}"
            log = folder / f"server-{place}.log"
            server = running.enter_context(serving(one.command, url, log, env | dict(one.env)))
            clocks.append(partial(tree_s, server.process.pid) if threads else time.perf_counter)
        found = asyncio.run(in_turns(engines, clocks, rounds, streams))
    return {(one.engine, one.drafts): rates for one, rates in zip(engines, found, strict=True) if rates}


def tables(found: Mapping[tuple[str, str], Rates]) -> str:
    """Each engine's best drafts by its own rates without, and Kvasir's by those of the best peer."""
    engines, rows = list(dict.fromkeys(engine for engine, _ in found)), []
    for work in next(iter(found.values())):
        best = {
            engine: max(
                (rates[work] for (name, drafts), rates in found.items() if name == engine and drafts),
                key=statistics.median,
            )
            for engine in engines
        }
        peers = [rates for engine, rates in best.items() if engine != "Kvasir"]
        by_peers = spread(best["Kvasir"], max(peers, key=statistics.median)) if peers else "-"
        gains = [spread(best[engine], found[engine, ""][work]) for engine in engines]
        rate = f"{statistics.median(best['Kvasir']):.0f}"
        rows.append([*work.split(", "), rate, *gains, by_peers])
    head = ["answer", "streams", "Kvasir, tokens a second", *(f"{name}, by its own without drafts" for name in engines)]
    return table([*head, "Kvasir by the best peer"], rows)


def spread(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Median, least and most of the ratios of the rounds."""
    ratios = sorted(one / other for one, other in zip(ours, theirs, strict=True))
    return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--streams", type=int, nargs="+", default=(1, 4), help="at once")
    parser.add_argument(
        "--threads", type=int, default=0, help="of each engine, by processor seconds; 0: all, by the clock"
    )
    parser.add_argument("--write", action="store_true", help="keep the figures in docs/benchmarks/speculation.md")
    asked = parser.parse_args()
    by = f", by processor seconds of {asked.threads} thread(s)" if asked.threads else ""
    said = (
        f"small, {processor()}, {time.strftime('%Y-%m-%d', time.gmtime())}, medians (least to most) of the ratios of"
        f" {asked.rounds} rounds{by}\n\n{tables(measured(asked.rounds, asked.threads, asked.streams))}"
    )
    print(f"\n{said}")
    if asked.write:
        PAGE.write_text(marked_page.replaced(PAGE.read_text(), MARKS, said))
    return 0


if __name__ == "__main__":
    sys.exit(main())
