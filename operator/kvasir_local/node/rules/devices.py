"""Hands GPUs to containers by number and names to the program those which are its own, as a device plugin does."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvasir_kube.kinds import Json
from kvasir_local.node.rules.kinds import containers

GPU: Final = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """What the node has. real: device files exist; otherwise they are only counted, and programs run on the CPU."""

    count: int
    real: bool


def wanted(container: Json) -> int:
    """GPUs that a container requests."""
    limits = (container.get("resources") or {}).get("limits") or {}
    return int(limits.get(GPU) or 0)


def assign(pod: Json, taken: frozenset[int], gpus: Gpus) -> dict[str, tuple[int, ...]] | None:
    """Container name → GPU numbers, lowest free first; None when the node has too few free ones."""
    free = [number for number in range(gpus.count) if number not in taken]
    found: dict[str, tuple[int, ...]] = {}
    for container in containers(pod["spec"]):
        count = wanted(container)
        if count > len(free):
            return None
        found[container["name"]], free = tuple(free[:count]), free[count:]
    return found


def variables(numbers: tuple[int, ...], gpus: Gpus) -> Mapping[str, str]:
    """Environment that shows a container its GPUs and hides the others."""
    visible = ",".join(map(str, numbers)) if gpus.real else ""
    return {"CUDA_VISIBLE_DEVICES": visible, "NVIDIA_VISIBLE_DEVICES": visible or "void"}


def files(numbers: tuple[int, ...], gpus: Gpus, present: frozenset[str]) -> tuple[str, ...]:
    """Device files that the container needs, of those present on the machine. Without a GPU of its own it gets none."""
    if not numbers or not gpus.real:
        return ()
    mine = {f"/dev/nvidia{number}" for number in numbers}
    shared = {path for path in present if not path.removeprefix("/dev/nvidia").isdigit()}
    return tuple(sorted((mine & present) | shared))
