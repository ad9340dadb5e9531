"""A follow-up of a long prompt from the second tier on the host against computing it: `make bench-host-tier`.

A server computes a prompt, answers, and ends; one that starts after it has an empty cache and the file of the first.
It gets the prompt, the answer and a few words more, with the file and without, in turns. Time to the first token is
that of the client; the rates of copies are those that `/state` measured.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from bench import marked_page
from bench.cpu import PORT, processor
from bench.servers import Running, serving
from bench.shapes import SHAPES, written

ANSWER: Final = 16
"""Tokens that each request generates."""
MORE: Final = 64
"""Tokens that the follow-up adds."""
SETTLE_S: Final = 60.0
POLL_S: Final = 1.5
PAGE: Final = Path(__file__).parents[2] / "docs" / "benchmarks" / "host-tier.md"
MARKS: Final = ("<!-- measured: written by make bench-host-tier -->", "<!-- end of measured -->")


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowUp:
    """first_s: to the first token. load, store: measured bytes a second, 0 without a tier."""

    first_s: float
    loaded_tokens: int
    load: float
    store: float


def main() -> int:
    """Prints a line for each turn and a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="small", choices=list(SHAPES))
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", type=Path, help="where the file of blocks is; by default a temporary directory")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds after which no further round begins")
    parser.add_argument("--write", action="store_true", help="keep the figures in docs/benchmarks/host-tier.md")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory(dir=asked.dir) as kept:
        length = asked.tokens + 2 * ANSWER + MORE
        shape = replace(SHAPES[asked.shape], max_position_embeddings=length)
        model = written(Path(folder) / "model", shape)
        token_bytes = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * 2
        host_bytes = int(2.5 * length * token_bytes) + (64 << 20)
        found = _measured(asked, model, Path(folder), Path(kept), length, host_bytes)
    measured = (
        f"{asked.shape}, a prompt of {asked.tokens:,} tokens of {token_bytes:,} bytes in the KV cache, {processor()},"
        f" {time.strftime('%Y-%m-%d', time.gmtime())}"
    )
    said = f"{measured}\n\n{_table(found)}"
    print(f"\n{said}")
    if asked.write:
        PAGE.write_text(marked_page.replaced(PAGE.read_text(), MARKS, said))
    return 0 if all(row.loaded_tokens for row in found["from the host"]) else 1


def _table(found: Mapping[str, Sequence[FollowUp]]) -> str:
    """Of Markdown; three numbers are median, least and most."""
    rows = [
        (f"seconds to the first token, {name}", [one.first_s for one in ran], 1.0, 2) for name, ran in found.items()
    ]
    host = found["from the host"]
    rows.append(("copy from the host, GB/s", [one.load for one in host], 1e9, 2))
    rows.append(("copy to the host, GB/s", [one.store for one in host], 1e9, 2))
    rows.append(("tokens that came from the host", [one.loaded_tokens for one in host], 1, 0))
    lines = ["| follow-up | median | least | most | runs |", "|---|---|---|---|---|"]
    for name, values, unit, digits in rows:
        three = (statistics.median(values), min(values), max(values))
        lines.append(f"| {name} | {' | '.join(f'{value / unit:,.{digits}f}' for value in three)} | {len(values)} |")
    return "\n".join(lines)


def _measured(
    asked: argparse.Namespace, model: Path, folder: Path, kept: Path, length: int, host_bytes: int
) -> dict[str, list[FollowUp]]:
    """Both ways in turns."""
    began, last_s = time.monotonic(), 0.0
    prompt = [20 + 7 * place % 400 for place in range(asked.tokens)]
    plain = ("--kv-cache-tokens", str(length + 1024), "--max-model-len", str(length))
    tier = (*plain, "--kv-host-bytes", str(host_bytes), "--kv-host-dir", str(kept))
    with _server(model, folder, tier) as running:
        first_s, answer = _asked(prompt)
        print(f"the prompt itself: {first_s:.2f} s", flush=True)
        stored = _settled(running)
        print(f"copied to the host at {stored['store_bytes_per_s'] / 1e9:.2f} GB/s", flush=True)
    found: dict[str, list[FollowUp]] = {"from the host": [], "computed": []}
    for number in range(asked.rounds):
        round_began = time.monotonic()
        if number and round_began - began + last_s > asked.limit:
            break
        more = [*prompt, *answer, *(30 + number + place for place in range(MORE))]
        for name, args in (("from the host", tier), ("computed", plain)):
            with _server(model, folder, args):
                first_s, _ = _asked(more)
                state = _state()["kv_host"]
            row = FollowUp(
                first_s=first_s,
                loaded_tokens=state["loaded_tokens"],
                load=state["load_bytes_per_s"],
                store=stored["store_bytes_per_s"],
            )
            found[name].append(row)
            print(f"{number + 1} {name}: {first_s:.2f} s, {row.loaded_tokens} tokens came from the host", flush=True)
        last_s = time.monotonic() - round_began
    return found


def _server(model: Path, folder: Path, args: Sequence[str]) -> Any:
    command = [sys.executable, "-m", "kvasir_runtime", "serve", str(model), "--served-model-name", "m"]
    ports = ["--port", str(PORT), "--ops-port", str(PORT + 1), "--device", "cpu"]
    return serving([*command, *ports, *args], f"http://127.0.0.1:{PORT + 1}/readyz", folder / "log", {})


def _asked(prompt: Sequence[int]) -> tuple[float, list[int]]:
    """Seconds to the first token of a stream, and the ids of the answer."""
    body = {
        "model": "m",
        "prompt": list(prompt),
        "max_tokens": ANSWER,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    began, first_s, ids = time.perf_counter(), 0.0, []
    with urllib.request.urlopen(request, timeout=3600) as response:
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            for choice in json.loads(line[6:])["choices"]:
                if choice.get("token_ids"):
                    first_s = first_s or time.perf_counter() - began
                    ids += choice["token_ids"]
    return first_s, ids


def _state() -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT + 1}/state", timeout=10) as response:
        return json.loads(response.read())


def _settled(running: Running) -> Any:
    """The tier's state once nothing is copied any more."""
    deadline, before = time.monotonic() + SETTLE_S, -1
    while time.monotonic() < deadline and running.process.poll() is None:
        state = _state()["kv_host"]
        if state["stored_tokens"] == before:
            return state
        before = state["stored_tokens"]
        time.sleep(POLL_S)
    raise RuntimeError("the server still copies")


if __name__ == "__main__":
    sys.exit(main())
