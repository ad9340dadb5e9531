"""The tables of operations for processors: CPU in torch's operations, and the same with the C++ kernels.

Called by `kernels.backends`. What the C++ does not take, by type or shape, goes to the operation of CPU.
"""

from dataclasses import replace
from functools import partial

import torch

from kvasir_runtime.kernels import (
    act_and_mul,
    append_ids,
    argmax,
    attention,
    bitmask,
    copy_blocks,
    embedding,
    gated,
    gated_delta,
    linear,
    logprobs,
    moe,
    penalties,
    quantize,
    rms_norm,
    rope,
    sample,
    split_qkv,
    step_inputs,
    write_kv,
)
from kvasir_runtime.kernels.act_and_mul import Activation
from kvasir_runtime.kernels.cpu import experts, library
from kvasir_runtime.kernels.cpu import linear as packing
from kvasir_runtime.kernels.cpu import quantize as cpu_quantize
from kvasir_runtime.kernels.cpu.bindings import cpu_kernels
from kvasir_runtime.kernels.cpu.row_sampler import CppRowSampler
from kvasir_runtime.kernels.cpu.step import decoder_step
from kvasir_runtime.kernels.linear import Build
from kvasir_runtime.kernels.ops import Ops

CPU = Ops(
    name="cpu",
    embedding=embedding.reference,
    linear=linear.reordering(linear.cpu),
    gated=linear.reordering(gated.cpu),
    moe=moe.grouped(linear.cpu, partial(gated.composed, linear.cpu, act_and_mul.cpu)),
    rms_norm=rms_norm.cpu,
    rope=rope.cpu,
    write_kv=write_kv.reference,
    split_qkv=split_qkv.cpu,
    attention=attention.cpu,
    gated_delta=gated_delta.cpu,
    act_and_mul=act_and_mul.cpu,
    sample=sample.cpu,
    argmax=argmax.reference,
    logprobs=logprobs.reference,
    copy_blocks=copy_blocks.reference,
    penalties=penalties.reference,
    bitmask=bitmask.reference,
    step_inputs=step_inputs.reference,
    append_ids=append_ids.reference,
    quantize=quantize.reference,
    invariant_dtypes=(torch.float32,),
)


def cpu_ops(*, batch_invariant: bool = False) -> Ops:
    """CPU with C++ kernels for what has one; without the library torch's, as a fallback.

    batch_invariant: no kernel whose sums depend on the number of rows, which leaves AMX and that of one query aside.
    """
    found = library.library()
    if found is None:
        return replace(CPU, fallback=library.absence())
    return cpp_ops(found, batch_invariant=batch_invariant)


def cpp_ops(found: library.Library, *, batch_invariant: bool = False) -> Ops:
    """The same of a library that was loaded, in its variant."""
    found, amx = (replace(found, invariant=True), "") if batch_invariant else packing.with_amx(found)
    made = cpu_kernels(found)
    product = packing.packed_linear(found, linear.cpu)
    both = packing.packed_linear(found, gated.composed(linear.cpu, made.act_and_mul, "silu"), gated=True)

    def gated_by(activation: Activation) -> Build:
        return both if activation == "silu" else gated.composed(product, made.act_and_mul, activation)

    return replace(
        CPU,
        name=f"cpu {found.isa}{amx}",
        embedding=made.embedding,
        linear=linear.reordering(product),
        gated=linear.reordering(both),
        moe=experts.packed_experts(found, product, gated_by, made.act_and_mul),
        rms_norm=made.rms_norm,
        split_qkv=made.split_qkv,
        attention=made.attention,
        act_and_mul=made.act_and_mul,
        sample=made.sample,
        argmax=made.argmax,
        logprobs=made.logprobs,
        quantize=cpu_quantize.in_cpp(found),
        decoder_step=partial(decoder_step, found),
        row_sampler=partial(CppRowSampler, found),
        set_threads=partial(_set_threads, found),
        invariant_dtypes=(torch.float32,) if found.amx else (torch.float32, torch.bfloat16),
        packs_bfloat16=True,
    )


def _set_threads(found: library.Library, threads: int) -> None:
    torch.set_num_threads(threads)
    found.start(threads)
