"""TRITON: the table of operations for CUDA, and for a CPU whose Triton interprets."""

from dataclasses import replace

import torch

from kvasir_runtime.kernels import argmax, copy_blocks, embedding, logprobs, quantize
from kvasir_runtime.kernels.gpu import (
    act_and_mul,
    append_ids,
    attention,
    bitmask,
    gated_delta,
    linear,
    moe,
    penalties,
    rms_norm,
    rope,
    sample,
    split_qkv,
    step_inputs,
    tuning_table,
    write_kv,
)
from kvasir_runtime.kernels.linear import reordering
from kvasir_runtime.kernels.ops import Ops

# Torch's copies and lookups are as fast as kernels of ours would be.
TRITON = Ops(
    name="triton",
    embedding=embedding.reference,
    linear=reordering(linear.build),
    gated=reordering(linear.gated),
    moe=moe.build,
    rms_norm=rms_norm.launch,
    rope=rope.launch,
    write_kv=write_kv.launch,
    split_qkv=split_qkv.launch,
    attention=attention.launch,
    gated_delta=gated_delta.launch,
    act_and_mul=act_and_mul.launch,
    sample=sample.launch,
    argmax=argmax.reference,
    logprobs=logprobs.reference,
    copy_blocks=copy_blocks.reference,
    penalties=penalties.launch,
    bitmask=bitmask.launch,
    step_inputs=step_inputs.launch,
    append_ids=append_ids.launch,
    quantize=quantize.reference,
)


def triton_ops(device: torch.device) -> Ops:
    """TRITON; its name includes the GPU whose launch parameters are used, where the device has none of its own."""
    return replace(TRITON, name=f"triton{tuning_table.described(device)}")
