"""A driver for Triton that has no card: kernels are compiled for Hopper as if they were launched, and recorded.

What the interpreter cannot see, the compiler does: types that do not agree, tiles that do not fit into shared memory.
Results stay what memory held, so nothing is to be read from outputs.
"""

from dataclasses import dataclass, field
from typing import Any

from triton.backends.compiler import GPUTarget

SHARED_BYTES = 232_448  # of one program on an H100 or H200


@dataclass(slots=True)
class Utils:
    """What Triton asks about a card, and where it would load binaries."""

    loaded: dict[str, list[int]] = field(default_factory=dict)

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": SHARED_BYTES, "multiprocessor_count": 132}

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        """Records the kernel; module, function, registers, spills and threads are made up."""
        assert binary
        self.loaded.setdefault(name, []).append(shared)
        return 1, 1, 0, 0, 1024


class Hopper:
    """`triton.runtime.driver.set_active(Hopper())`; `loaded` has the shared bytes of every compiled kernel by name."""

    def __init__(self) -> None:
        self.utils = Utils()

    @property
    def loaded(self) -> dict[str, list[int]]:
        return self.utils.loaded

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        return lambda *args: None
