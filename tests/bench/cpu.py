"""How fast the engine is on this machine's processors: `python tests/bench/cpu.py [results.json]`, or `make bench`.

Writes a random model of 130 million weights, serves it with the default options, and sends the four workloads of
`kvasir bench` through the HTTP API. Beside each figure stands what the same run's memory allows: reading all weights
once is the floor of one step of one stream.
"""

import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from fakes import checkpoints
from kvasir_runtime.bench.workload import WORDS

KVASIR: Final = Path(sys.executable).parent / "kvasir"
WORKLOADS: Final = ("w1", "w2", "w3", "w4")
PORT, OPS_PORT = 18600, 18601
READY_S: Final = 120.0
SHAPE: Final = checkpoints.Shape(
    hidden_size=768,
    intermediate_size=3584,
    num_layers=12,
    num_heads=12,
    num_kv_heads=4,
    head_dim=64,
    vocab_size=8192,
    max_position_embeddings=8192,
    dtype=torch.bfloat16,
)


def main(arguments: list[str]) -> int:
    """Prints a table and writes the figures to the file that is named, if any. Returns 0."""
    figures: dict[str, Any] = {"read_gb_per_s": read_rate() / 1e9}
    with tempfile.TemporaryDirectory() as folder:
        model = written(Path(folder) / "small")
        weights = sum(path.stat().st_size for path in model.glob("*.safetensors"))
        figures["floor_ms_per_token"] = 1000 * weights / read_rate()
        server = serve(model)
        try:
            for workload in WORKLOADS:
                figures[workload] = measure(workload, Path(folder) / f"{workload}.json")
        finally:
            server.terminate()
            server.wait(30)
    print(f"memory read {figures['read_gb_per_s']:.1f} GB/s; floor of a token {figures['floor_ms_per_token']:.1f} ms")
    if arguments:
        Path(arguments[0]).write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def written(folder: Path) -> Path:
    """The checkpoint: every word of the workloads is one token, and only tokens of printable ASCII can be drawn.

    Rows of all other tokens in the output layer are zero: their logit of 0 never wins against thousands of others.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = list(checkpoints.SPECIAL_TOKENS)
    trainer = trainers.BpeTrainer(
        vocab_size=SHAPE.vocab_size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([" ".join(WORDS), *(f" {word}" for word in WORDS)] * 2, trainer)
    checkpoints.write(folder, SHAPE)
    tokenizer.save(str(folder / "tokenizer.json"))
    weights = checkpoints.random_weights(SHAPE)
    for token in range(SHAPE.vocab_size):
        text = tokenizer.decode([token]) if token < tokenizer.get_vocab_size() else ""
        if not (text.isascii() and text.isprintable() and text.strip()):
            weights["lm_head.weight"][token] = 0
    checkpoints.write_weights(folder, weights)
    return folder


def read_rate() -> float:
    """Bytes per second at which all threads read memory: the best of five sums over 512 MiB."""
    data = torch.ones(128 << 20, dtype=torch.float32)
    best = 0.0
    for _ in range(5):
        started = time.perf_counter()
        data.sum()
        best = max(best, data.nbytes / (time.perf_counter() - started))
    return best


def serve(model: Path) -> subprocess.Popen[bytes]:
    """The real server, ready."""
    command = [KVASIR, "serve", model, "--port", str(PORT), "--ops-port", str(OPS_PORT), "--kv-cache-tokens", "65536"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{OPS_PORT}/readyz", timeout=1):
                return server
        except OSError:
            time.sleep(0.05)
    server.kill()
    raise SystemExit(f"the server was not ready within {READY_S:.0f} s")


def measure(workload: str, out: Path) -> dict[str, Any]:
    """One workload's figures; its table goes to the screen."""
    print(f"\n{workload.upper()}", flush=True)
    url = f"http://127.0.0.1:{PORT}"
    subprocess.run([KVASIR, "bench", "--url", url, "--workload", workload, "--json", out], check=True)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
