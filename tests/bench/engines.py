"""The engines that can be measured side by side: what each needs, how its model is made ready, how it is started.

A peer takes part where it is installed; where it is not, `absent` says what to set. Every one runs on all processors
with at least 32 sequences at once and room for 64k tokens, otherwise as it comes.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fakes import ggufs

HERE: Final = Path(__file__).parent
BIN: Final = Path(sys.executable).parent
SEQUENCES: Final = 32
KV_TOKENS: Final = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """absent: "" or why it cannot run here. prepared: the model as this engine reads it, made once in a folder.

    command, env: from the prepared model and the port. ready: path that answers 200 once requests are served.
    weight_bytes: of one weight, for the limit. precision: as the tables say it.
    """

    name: str
    precision: str
    weight_bytes: float
    absent: Callable[[], str]
    prepared: Callable[[Path, Path], Path]
    command: Callable[[Path, int], list[str]]
    ready: str = "/health"
    env: Mapping[str, str] = field(default_factory=dict)


def kvasir(name: str, precision: str, weight_bytes: float, *options: str) -> Engine:
    """Our own server with options beside the defaults."""

    def command(model: Path, port: int) -> list[str]:
        ports = ["--port", str(port), "--ops-port", str(port + 1)]
        return [str(BIN / "kvasir"), "serve", str(model), *ports, "--kv-cache-tokens", str(KV_TOKENS), *options]

    return Engine(
        name=name,
        precision=precision,
        weight_bytes=weight_bytes,
        absent=lambda: "",
        prepared=lambda model, _: model,
        command=command,
    )


def _llama_server() -> str:
    return os.environ.get("KVASIR_BENCH_LLAMA_SERVER", "") or shutil.which("llama-server") or ""


def llama_cpp(name: str, precision: str, weight_bytes: float, quantization: str) -> Engine:
    """llama-server with one pool of KV for all slots, the best of its settings on the workloads with many at once."""

    def prepared(model: Path, folder: Path) -> Path:
        return ggufs.write(model, folder / f"{quantization}.gguf", kind=quantization)

    def command(model: Path, port: int) -> list[str]:
        threads = str(os.cpu_count())
        fixed = [_llama_server(), "-m", str(model), "--host", "127.0.0.1", "--port", str(port), "-t", threads]
        return [*fixed, "-tb", threads, "-np", str(SEQUENCES), "--kv-unified", "-c", str(KV_TOKENS)]

    return Engine(
        name=name,
        precision=precision,
        weight_bytes=weight_bytes,
        absent=lambda: "" if _llama_server() else "no llama-server: put it on PATH or set KVASIR_BENCH_LLAMA_SERVER",
        prepared=prepared,
        command=command,
    )


def openvino(name: str, precision: str, weight_bytes: float, weight_format: str) -> Engine:
    """OpenVINO GenAI's continuous batching, which ships no server, behind openvino_server.py in its own environment."""
    python = os.environ.get("KVASIR_BENCH_OPENVINO_PYTHON", "")

    def prepared(model: Path, folder: Path) -> Path:
        out = folder / weight_format
        export = [str(Path(python).parent / "optimum-cli"), "export", "openvino", "-m", str(model)]
        what = ["--task", "text-generation-with-past", "--weight-format", weight_format, str(out)]
        subprocess.run([*export, *what], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        shutil.copy(model / "tokenizer.json", out / "tokenizer.json")
        return out

    return Engine(
        name=name,
        precision=precision,
        weight_bytes=weight_bytes,
        absent=lambda: "" if python else "set KVASIR_BENCH_OPENVINO_PYTHON to a python with openvino-genai and optimum",
        prepared=prepared,
        command=lambda model, port: [python, str(HERE / "openvino_server.py"), str(model), str(port)],
        ready="/v1/models",
    )


def vllm() -> Engine:
    """vLLM's CPU back end, both processors bound to the engine: by default it keeps one for its front end."""
    program = os.environ.get("KVASIR_BENCH_VLLM", "") or shutil.which("vllm") or ""

    def command(model: Path, port: int) -> list[str]:
        fixed = [program, "serve", str(model), "--port", str(port), "--host", "127.0.0.1", "--dtype", "bfloat16"]
        return [*fixed, "--max-num-seqs", str(SEQUENCES), "--max-model-len", "8192"]

    cores = f"0-{(os.cpu_count() or 1) - 1}"
    return Engine(
        name="vLLM",
        precision="bf16",
        weight_bytes=2,
        absent=lambda: "" if program else "no vllm: put it on PATH or set KVASIR_BENCH_VLLM",
        prepared=lambda model, _: model,
        command=command,
        env={"VLLM_CPU_OMP_THREADS_BIND": cores, "VLLM_CPU_KVCACHE_SPACE": "2"},
    )


ENGINES: Final = {
    engine.name: engine
    for engine in (
        kvasir("Kvasir", "bf16", 2),
        kvasir("Kvasir int8", "int8", 1, "--quantization", "int8"),
        kvasir("Kvasir int4", "int4", 0.5, "--quantization", "int4"),
        llama_cpp("llama.cpp", "bf16", 2, "BF16"),
        llama_cpp("llama.cpp Q8_0", "int8", 1.0625, "Q8_0"),
        openvino("OpenVINO", "bf16", 2, "fp16"),
        openvino("OpenVINO int8", "int8", 1, "int8"),
        vllm(),
    )
}
