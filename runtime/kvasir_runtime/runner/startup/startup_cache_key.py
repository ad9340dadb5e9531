"""The key under which `startup_cache` stores what a start measured. Called by `build`.

Sizes and headers represent the weights: the memory of a step depends on shapes and types, not on values, and a model
that was copied or downloaded again has the same key.
"""

import contextlib
import hashlib
import os
from importlib import metadata
from pathlib import Path
from typing import Final

import torch

import kvasir_runtime
from kvasir_api import __version__
from kvasir_api.options import RuntimeOptions, ServeOptions
from kvasir_runtime import gguf
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.runner.startup import host_resources, placement
from kvasir_runtime.weights import safetensors_checkpoint

DRIVER: Final = Path("/proc/driver/nvidia/version")
GGUF_BYTES: Final = 16 << 20
"""More than the largest vocabularies take; parsing the header again would take longer than hashing this."""
_ALLOCATOR: Final = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def key(
    options: ServeOptions, model: Path, ops: Ops, device: torch.device, drafter: Path | None = None
) -> dict[str, str]:
    """Everything that the memory of a step depends on, by name. drafter: of a draft model, if there is one."""
    shared = {name: getattr(options, name) for name in RuntimeOptions.model_fields}
    return {
        "model": model_of(model),
        "draft model": "" if drafter is None else model_of(drafter),
        "options": " ".join(f"{name}={value}" for name, value in shared.items()),
        "copies of experts": options.eplb_config or str(options.enable_eplb),
        "device": placement.device_name(device),
        "memory": str(_memory_bytes(device)),
        "driver": _driver(device),
        "kernels": ops.name,
        "model impl": f"{options.model_impl} {_version('transformers')}",
        "versions": _versions(),
        "source": source(Path(kvasir_runtime.__file__).parent),
        "allocator": " ".join(os.environ.get(name, "") for name in _ALLOCATOR),
    }


def compiler(device: torch.device) -> str:
    """A name for all that a kernel's compiled form depends on but the kernel: card, driver, versions. Empty on a
    processor, where none is compiled at run time."""
    if device.type != "cuda":
        return ""
    parts = (placement.device_name(device), _driver(device), _versions())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def model_of(model: Path) -> str:
    """Of the checkpoint's config, and the headers and sizes of its files."""
    digest = hashlib.sha256()
    files = weight_files(model)
    if gguf.is_gguf(model):
        headers = [_beginning(path) for path in files]
    else:
        headers = [safetensors_checkpoint.header(path) for path in files]
        digest.update((model / "config.json").read_bytes())
    for path, header in zip(files, headers, strict=True):
        digest.update(f"{path.name} {path.stat().st_size} {len(header)} ".encode())
        digest.update(header)
    return digest.hexdigest()


def weight_files(model: Path) -> list[Path]:
    """The files of a checkpoint that hold its weights."""
    if gguf.is_gguf(model):
        return [Path(part) for part in gguf.parts(str(model))]
    return list(safetensors_checkpoint.files(model))


def identity(model: Path) -> list[str]:
    """Of the files of a checkpoint as they lie there: another model in their place has another time of change.

    Their content is not read, which would take longer than the start; a copy of a model counts as another one.
    Raises OSError where one is missing.
    """
    files = ([] if gguf.is_gguf(model) else [model / "config.json"]) + weight_files(model)
    found = [(path.name, path.stat()) for path in files]
    return [f"{name} {stat.st_size} {stat.st_ino} {stat.st_mtime_ns} {stat.st_ctime_ns}" for name, stat in found]


def _beginning(path: Path) -> bytes:
    """Of a GGUF file: all that comes before the tensors, and perhaps some of them."""
    with path.open("rb") as stream:
        return stream.read(GGUF_BYTES)


def _memory_bytes(device: torch.device) -> int:
    if device.type == "cpu":
        return host_resources.memory_limit_bytes()
    return int(torch.cuda.get_device_properties(device).total_memory)


def _driver(device: torch.device) -> str:
    """The driver's version, or torch's CUDA where the kernel does not show it."""
    if device.type == "cpu":
        return ""
    with contextlib.suppress(OSError):
        return DRIVER.read_text(errors="replace").splitlines()[0]
    return f"cuda {torch.version.cuda}"


def _versions() -> str:
    return f"kvasir {__version__} torch {torch.__version__} triton {_version('triton')}"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def source(folder: Path) -> str:
    """Of this code, which changes in development without a new version."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        found = path.stat()
        digest.update(f"{path.relative_to(folder)} {found.st_size} {found.st_mtime_ns} ".encode())
    return digest.hexdigest()[:16]
