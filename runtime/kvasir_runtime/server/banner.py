"""The banner that a terminal shows when the server is ready, and how numbers are written in it.

Pure; called by the process once the engine is ready.
"""

from dataclasses import dataclass

from kvasir_api import cache_groups
from kvasir_runtime.wire import EngineFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSummary:
    """Seconds of the start by part, and the addresses that listen."""

    names: tuple[str, ...]
    folder: str
    http: str
    ops: str
    total_s: float
    find_s: float


def banner(ready: EngineFacts, start: StartSummary) -> str:
    """Several lines, aligned."""
    starting_s = start.total_s - start.find_s - ready.load_s - ready.warm_s  # mostly the import of torch
    rows = [
        ("model", f"{', '.join(start.names)} ({start.folder})"),
        ("device", f"{ready.device}, {_kernels(ready.kernels)}{_because(ready.fallback)}, {ready.dtype}"),
        (
            "weights",
            size(ready.weights_bytes)
            + (f", {ready.quantization}" if ready.quantization else "")
            + _streamed(ready)
            + _drafter(ready),
        ),
        *_cache(ready),
        *_host_tier(ready),
        ("clients", f"{start.http}/v1"),
        ("control", start.ops),
        (
            "ready in",
            (
                f"{start.total_s:.1f} s (find {start.find_s:.1f}, start {max(0.0, starting_s):.1f}, "
                f"load {ready.load_s:.1f}, warm-up {ready.warm_s:.1f})"
            ),
        ),
    ]
    return "\n".join(["Kvasir is ready", *(f"  {name:<12}{value}" for name, value in rows)])


def _cache(ready: EngineFacts) -> list[tuple[str, str]]:
    """What requests share: the cache, or the step of an encoder."""
    if cache_groups.keeps_nothing(ready.attentions):
        texts = f"{ready.max_sequences} texts at most, the longest {ready.max_model_len:,}"
        return [("KV cache", "none"), ("step", f"up to {ready.max_batch_tokens:,} tokens of {texts}")]
    concurrency = ready.capacity_tokens / max(1, ready.max_model_len)
    if ready.data_ranks > 1:  # none is in two parts, and the last token of each is not kept
        each = ready.capacity_tokens // ready.data_ranks // max(1, ready.max_model_len - 1)
        concurrency = ready.data_ranks * each
    cache_bytes = ready.capacity_tokens * ready.kv_bytes_per_token
    requests = f"{concurrency:.2f} requests of {ready.max_model_len:,} tokens, {ready.max_sequences} at most"
    return [
        ("KV cache", f"{ready.capacity_tokens:,} tokens in blocks of {ready.block_size} ({size(cache_bytes)})"),
        ("concurrency", requests),
    ]


def _drafter(ready: EngineFacts) -> str:
    """What a draft model takes beside."""
    if not ready.drafter.weights_bytes:
        return ""
    cache_bytes = ready.capacity_tokens * ready.drafter.kv_bytes_per_token
    return f"; of the draft model {size(ready.drafter.weights_bytes)}, and {size(cache_bytes)} for its keys and values"


def _streamed(ready: EngineFacts) -> str:
    """Weights on the host, and how long a step takes at least for that."""
    if not ready.host_weights_bytes:
        return ""
    return f", {size(ready.host_weights_bytes)} of them on the host: a step copies for {ready.weights_copy_s:.3g} s"


def _host_tier(ready: EngineFacts) -> list[tuple[str, str]]:
    if not ready.host_blocks:
        return []
    tokens = ready.host_blocks * ready.block_size // len(ready.attentions)
    return [("on the host", f"{tokens:,} tokens ({size(tokens * ready.kv_bytes_per_token)})")]


def _kernels(kernels: str) -> str:
    """Whose kernels, and whether whole steps of them are recorded."""
    name, graphs, _ = kernels.partition(", graphs")
    return f"{name} kernels{graphs}"


def _because(fallback: str) -> str:
    return f" ({fallback})" if fallback else ""


def size(num_bytes: float) -> str:
    """Bytes in binary units with three digits or so, for example 1.25 GiB."""
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.2f} GiB"


def progress_line(phase: str, fraction: float, eta_s: float, message: str = "") -> str:
    """One line of the start for where there is no terminal."""
    eta = f", about {eta_s:.0f} s left" if eta_s >= 0 else ""
    detail = f" ({message})" if message else ""
    return f"{phase} {fraction:.0%}{eta}{detail}"
