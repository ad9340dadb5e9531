"""Answers that copy their prompts, beside peers with lookups of their own: `python -m bench.copying`.

One model for all (`copying_model`), in 16 bits: of Kvasir the checkpoint, of peers a GGUF file of it. Each engine is
started with drafts and without, and sent the same prompts of ids; the seconds are those from the first token to the
end. Peers take part where KVASIR_BENCH_OPENVINO_PYTHON names a python with openvino-genai, tokenizers and aiohttp,
and KVASIR_BENCH_LLAMA_CPP_PYTHON one with xllamacpp.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from bench import copying_model, marked_page
from bench.cpu import processor
from bench.engines import BIN, HERE
from bench.servers import serving
from bench.shapes import SHAPES, tokenizer_of
from bench.speculation import PAGE, table
from fakes import ggufs

MARKS: Final = ("<!-- copying: written by python -m bench.copying -->", "<!-- end of copying -->")
PORT: Final = 18_700
TOKENS: Final = 384
STREAMS: Final = (1, 4)
WORK: Final = {"edit": copying_model.edit, "extract": copying_model.extract}
SETTINGS: Final = {"OpenVINO": ("3,5",), "llama.cpp": ("12 48", "3 8")}
"""Ids that are looked for and drafted: those of the documentation or the program itself first. The best counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """An engine as it is started. drafts: as the table names them, "" for none."""

    engine: str
    drafts: str
    command: Sequence[str]
    ready: str = "/health"
    env: Mapping[str, str] = field(default_factory=dict)


def started(model: Path, folder: Path) -> list[Started]:
    """All that take part here, in the order in which they are measured."""
    found = [_kvasir(model, "off"), _kvasir(model, "auto")]
    if python := os.environ.get("KVASIR_BENCH_OPENVINO_PYTHON", ""):
        file = model / "model-f16.gguf"
        ggufs.write(model, file, kind="F16", general__file_type=1)
        command = [python, str(HERE / "openvino_server.py"), str(file), str(PORT)]
        for lookup in ("", *SETTINGS["OpenVINO"]):
            env = {"KVASIR_BENCH_OPENVINO_LOOKUP": lookup}
            found.append(Started(engine="OpenVINO", drafts=lookup, command=command, ready="/v1/models", env=env))
    if python := os.environ.get("KVASIR_BENCH_LLAMA_CPP_PYTHON", ""):
        file = folder / "model-bf16.gguf"
        ggufs.write(model, file, kind="BF16", general__file_type=32)
        command = [python, str(HERE / "llama_cpp_server.py"), str(file), str(PORT)]
        found += [
            Started(engine="llama.cpp", drafts=lookup, command=[*command, *lookup.split()])
            for lookup in ("", *SETTINGS["llama.cpp"])
        ]
    return found


def _kvasir(model: Path, speculation: str) -> Started:
    ports = ["--port", str(PORT), "--ops-port", str(PORT + 1)]
    options = ["--kv-cache-tokens", "16384", "--speculation", speculation, "--dtype", "bfloat16"]
    command = [str(BIN / "kvasir"), "serve", str(model), *ports, *options]
    return Started(engine="Kvasir", drafts="" if speculation == "off" else speculation, command=command)


async def answered(client: httpx.AsyncClient, prompt: Sequence[int], text: str) -> tuple[float, float]:
    """When its first token came, and when the answer ended. Raises RuntimeError where it is not this text."""
    body: dict[str, Any] = {"model": "model", "prompt": list(prompt), "max_tokens": TOKENS, "temperature": 0.0}
    body |= {"stream": True, "ignore_eos": True}
    first, parts = 0.0, list[str]()
    async with client.stream("POST", f"http://127.0.0.1:{PORT}/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith("data:") and line != "data: [DONE]":
                first = first or time.perf_counter()
                parts += [choice["text"] for choice in json.loads(line[5:]).get("choices", ())]
    if (given := "".join(parts)) != text:
        raise RuntimeError(f"answered {given[:80]!r}…, and not {text[:80]!r}…")
    return first, time.perf_counter()


async def rates(rounds: int) -> dict[str, list[float]]:
    """Tokens a second behind the first by work and streams, of each round; prompts are others in every round."""
    shape = SHAPES["small"]
    ids, tokenizer, found = copying_model.chain(shape.vocab_size), tokenizer_of(shape), dict[str, list[float]]()

    async with httpx.AsyncClient(timeout=300) as client:

        def request(prompt_of: Callable[..., list[int]], start: int) -> Coroutine[Any, Any, tuple[float, float]]:
            text = tokenizer.decode([ids[(start + place) % len(ids)] for place in range(TOKENS)])
            return answered(client, prompt_of(ids, start, TOKENS, start), text)

        await request(copying_model.edit, 5)
        for number in range(rounds):
            for name, prompt_of in WORK.items():
                for streams in STREAMS:
                    starts = [1 + 1000 * number + 400 * place for place in range(streams)]
                    ended = await asyncio.gather(*(request(prompt_of, start) for start in starts))
                    spent = max(end for _, end in ended) - min(first for first, _ in ended)
                    found.setdefault(f"{name}, {streams}", []).append(streams * (TOKENS - 1) / spent)
    return found


def measured(rounds: int) -> dict[tuple[str, str], dict[str, float]]:
    """The median rate by engine, drafts and work."""
    found = dict[tuple[str, str], dict[str, float]]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for one in started(copying_model.written(folder / "model", "small"), folder):
            url = f"http://127.0.0.1:{PORT}{one.ready}"
            with serving(one.command, url, folder / "server.log", dict(one.env)):
                by_work = asyncio.run(rates(rounds))
            found[one.engine, one.drafts] = {work: statistics.median(those) for work, those in by_work.items()}
            rounded = {work: round(rate, 1) for work, rate in found[one.engine, one.drafts].items()}
            print(one.engine, one.drafts or "off", rounded, flush=True)
    return found


def tables(found: Mapping[tuple[str, str], Mapping[str, float]]) -> str:
    """Each engine's best drafts by its own rate without, and Kvasir's by those of the best peer."""
    engines = list(dict.fromkeys(engine for engine, _ in found))
    rows = []
    for work in next(iter(found.values())):
        with_drafts = {
            engine: max(rate[work] for (name, drafts), rate in found.items() if name == engine and drafts)
            for engine in engines
        }
        peers = [rate for engine, rate in with_drafts.items() if engine != "Kvasir"]
        by_peers = f"{with_drafts['Kvasir'] / max(peers):.2f}" if peers else "-"
        gains = [f"{with_drafts[engine] / found[engine, ''][work]:.2f}" for engine in engines]
        rows.append([*work.split(", "), *gains, by_peers])
    head = ["answer", "streams", *(f"{engine}, by its own without drafts" for engine in engines)]
    return table([*head, "Kvasir by the best peer"], rows)


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="keep the figures in docs/benchmarks/speculation.md")
    asked = parser.parse_args()
    said = f"small, {processor()}, {time.strftime('%Y-%m-%d', time.gmtime())}\n\n{tables(measured(asked.rounds))}"
    print(f"\n{said}")
    if asked.write:
        PAGE.write_text(marked_page.replaced(PAGE.read_text(), MARKS, said))
    return 0


if __name__ == "__main__":
    sys.exit(main())
