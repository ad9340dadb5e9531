"""A driver for Triton that has no card: kernels are compiled for Hopper, or another, as if launched, and recorded.

What the interpreter cannot see, the compiler does: types that do not agree, tiles that do not fit into shared memory.
Results stay what memory held, so nothing is to be read from outputs.
"""

import itertools
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget

SHARED_BYTES = 232_448  # of one program on an H100 or H200
CARDS = {"A100": (80, 163 << 10), "L40S": (89, 99 << 10), "H200": (90, SHARED_BYTES), "B200": (100, SHARED_BYTES)}


@dataclass(slots=True)
class Utils:
    """What Triton asks about a card, and where it would load binaries."""

    shared_bytes: int = SHARED_BYTES
    loaded: dict[str, list[bytes]] = field(default_factory=dict)

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": self.shared_bytes, "multiprocessor_count": 132}

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        """Records the kernel; module, function, registers, spills and threads are made up."""
        assert binary
        self.loaded.setdefault(name, []).append(binary)
        return 1, 1, 0, 0, 1024

    def unload_module(self, module: int) -> None:
        """Nothing was loaded."""


class Hopper:
    """`triton.runtime.driver.set_active(Hopper())`; `loaded` has the binaries of every compiled kernel by name, and
    `launches` how often each would have been launched.

    capability: of another card, such as 89, with so much shared memory for one program.
    """

    _numbers = itertools.count()

    def __init__(self, capability: int = 90, shared_bytes: int = SHARED_BYTES) -> None:
        self.utils = Utils(shared_bytes=shared_bytes)
        self._capability = capability
        self.launches: Counter[str] = Counter()
        self._device = next(self._numbers)  # Triton keeps what it compiled by device: each fake sees all of its own

    @property
    def loaded(self) -> dict[str, list[bytes]]:
        return self.utils.loaded

    def spilled_bytes(self, name: str) -> list[int]:
        """Of a thread, for each binary of a kernel: registers that did not fit and went to memory."""
        tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        found = []
        for binary in self.loaded[name]:
            with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
                file.write(binary)
                file.flush()
                usage = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True)
            found += [int(size) for size in re.findall(r"STACK:(\d+)", usage.stdout)]
        return found

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._capability, 32)

    def get_current_device(self) -> int:
        return self._device

    def get_current_stream(self, device: int) -> int:
        return 0

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        def launch(*args: Any) -> None:
            self.launches[metadata.name] += 1

        return launch
