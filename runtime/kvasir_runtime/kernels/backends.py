"""Which table of operations a device gets. Called once at start, by the runner; models receive the table.

There are four: REFERENCE in plain torch, CPU in torch's operations for processors, the same with C++ kernels where they
were built, and TRITON. Each operation's contract is the docstring of its file in this package, and one test compares
every operation of every table with REFERENCE.
"""

import os
from dataclasses import replace

import torch

from kvasir_runtime.kernels.collectives import Collectives
from kvasir_runtime.kernels.cpu import collectives as cpu_collectives
from kvasir_runtime.kernels.cpu import library
from kvasir_runtime.kernels.cpu import stages as cpu_stages
from kvasir_runtime.kernels.cpu.ops import cpu_ops
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.kernels.reference import REFERENCE


def ops_for(device: torch.device, *, batch_invariant: bool = False) -> Ops:
    """The table for a device. Without triton CUDA takes the reference, as a fallback.

    batch_invariant: prefer kernels whose results do not depend on the batch; `Ops.invariant_dtypes` says where.

    TRITON_INTERPRET=1 gives the Triton kernels to a CPU too, slowly: the whole engine can be tried on them.
    """
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        return cpu_ops(batch_invariant=batch_invariant)
    try:
        from kvasir_runtime.kernels.gpu.ops import triton_ops
    except ImportError as error:
        return replace(REFERENCE, fallback=f"triton cannot be imported: {error}")
    return triton_ops(device)


def rank_memory(ranks: int, stages: int = 1) -> int:
    """A descriptor of the memory through which so many processes on this host exchange what they compute.

    stages: that they form, as of `StageCollectives`.
    Raises RuntimeError with a line for a person where there are no kernels for it, and OSError.
    """
    found = library.library()
    if found is None:
        raise RuntimeError(f"several ranks need the C++ kernels: {library.absence()}")
    size = cpu_stages.num_bytes(found, ranks, stages) if stages > 1 else cpu_collectives.num_bytes(found, ranks)
    return cpu_collectives.shared_memory(size)


def collectives_of(descriptor: int, rank: int, ranks: int, stages: int = 1) -> Collectives:
    """One rank's part of a group, in a process that has the descriptor of its memory."""
    found = library.library()
    if found is None:
        raise RuntimeError(f"several ranks need the C++ kernels: {library.absence()}")
    if stages > 1:
        return cpu_stages.SharedMemoryStages(found, descriptor, rank, ranks, stages)
    return cpu_collectives.SharedMemoryCollectives(found, descriptor, rank, ranks)
