"""The table of operations that models are built from: one callable per operation, one instance per kind of device.

`ops_for` chooses once at start; models receive the table and never ask where they run. Each operation's contract is the
docstring of its file, and one test walks every field of every table against REFERENCE. The third table, TRITON, is in
`kernels.gpu`, which only `ops_for` imports, and only where it is wanted; the fourth is CPU with the C++ kernels, where
they were built.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvasir_runtime.kernels import (
    append_ids,
    argmax,
    attention,
    bitmask,
    copy_blocks,
    embedding,
    gated,
    gelu_mul,
    linear,
    moe,
    penalties,
    rms_norm,
    rope,
    sample,
    silu_mul,
    split_qkv,
    step_inputs,
    write_kv,
)
from kvasir_runtime.kernels.cpu import library
from kvasir_runtime.kernels.cpu import linear as packing
from kvasir_runtime.kernels.cpu.table import cpu_kernels
from kvasir_runtime.kernels.linear import Build


@dataclass(frozen=True, slots=True, kw_only=True)
class Ops:
    """name is shown in the banner. An operation may consume (overwrite) its first argument; nothing else is changed.

    fallback: why this table serves and not the faster one that the device has, empty when it is the one.
    """

    name: str
    fallback: str = ""
    embedding: Callable[[Tensor, Tensor], Tensor]
    linear: Build
    gated: Build
    moe: moe.BuildMoe
    rms_norm: Callable[[Tensor, Tensor | None, Tensor, float], tuple[Tensor, Tensor]]
    rope: Callable[[Tensor, Tensor, Tensor], Tensor]
    write_kv: Callable[[Tensor, Tensor, Tensor, Tensor], None]
    split_qkv: Callable[[Tensor, Tensor | None, float, Tensor, Tensor, Tensor, Tensor], Tensor]
    attention: attention.Attention
    silu_mul: Callable[[Tensor], Tensor]
    gelu_mul: Callable[[Tensor], Tensor]
    sample: Callable[[Tensor, sample.Draws], Tensor]
    argmax: Callable[[Tensor], Tensor]
    copy_blocks: Callable[[Tensor, Tensor, Tensor], None]
    penalties: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]
    bitmask: Callable[[Tensor, Tensor, Tensor], None]
    step_inputs: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, int, int, int], step_inputs.StepInputs]
    append_ids: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]


REFERENCE = Ops(
    name="reference",
    embedding=embedding.reference,
    linear=linear.reference,
    gated=gated.reference,
    moe=moe.reference,
    rms_norm=rms_norm.reference,
    rope=rope.reference,
    write_kv=write_kv.reference,
    split_qkv=split_qkv.reference,
    attention=attention.reference,
    silu_mul=silu_mul.reference,
    gelu_mul=gelu_mul.reference,
    sample=sample.reference,
    argmax=argmax.reference,
    copy_blocks=copy_blocks.reference,
    penalties=penalties.reference,
    bitmask=bitmask.reference,
    step_inputs=step_inputs.reference,
    append_ids=append_ids.reference,
)

CPU = Ops(
    name="cpu",
    embedding=embedding.reference,
    linear=linear.cpu,
    gated=gated.cpu,
    moe=moe.grouped(linear.cpu, gated.cpu),
    rms_norm=rms_norm.cpu,
    rope=rope.cpu,
    write_kv=write_kv.reference,
    split_qkv=split_qkv.cpu,
    attention=attention.cpu,
    silu_mul=silu_mul.cpu,
    gelu_mul=gelu_mul.cpu,
    sample=sample.cpu,
    argmax=argmax.reference,
    copy_blocks=copy_blocks.reference,
    penalties=penalties.reference,
    bitmask=bitmask.reference,
    step_inputs=step_inputs.reference,
    append_ids=append_ids.reference,
)


def cpu_ops() -> Ops:
    """CPU with C++ kernels for what has one; without the library torch's, as a fallback."""
    found = library.library()
    if found is None:
        return replace(CPU, fallback=library.absence())
    made = cpu_kernels(found)
    product = linear.packed_linear(found, linear.cpu)
    both = linear.packed_linear(found, gated.composed(linear.cpu, made.silu_mul), gated=True)
    return replace(
        CPU,
        name=f"cpu {found.isa}{packing.use_amx(found)}",
        embedding=made.embedding,
        linear=product,
        gated=both,
        moe=moe.packed_experts(found, product, both),
        rms_norm=made.rms_norm,
        split_qkv=made.split_qkv,
        attention=made.attention,
        silu_mul=made.silu_mul,
        argmax=made.argmax,
    )


def ops_for(device: torch.device) -> Ops:
    """The table for a device. Without triton CUDA takes the reference, as a fallback.

    TRITON_INTERPRET=1 gives the Triton kernels to a CPU too, slowly: the whole engine can be tried on them.
    """
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        return cpu_ops()
    try:
        from kvasir_runtime.kernels.gpu.table import triton_ops
    except ImportError as error:
        return replace(REFERENCE, fallback=f"triton cannot be imported: {error}")
    return triton_ops(device)
