"""The table of operations that models are built from: one callable per operation, one table per kind of device.

`backends.ops_for` chooses a table once at start; models receive it and do not know where they run. It is the only way
to a backend: nothing outside this package imports `kernels.cpu` or `kernels.gpu`. Each operation's contract is the
docstring of its file.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kvasir_runtime.kernels import act_and_mul, attention, logprobs, moe, sample, step_inputs
from kvasir_runtime.kernels.collectives import Collectives
from kvasir_runtime.kernels.decoder_step import BuildDecoderStep
from kvasir_runtime.kernels.gated_delta import GatedDelta
from kvasir_runtime.kernels.linear import Build
from kvasir_runtime.kernels.quantize import Quantize
from kvasir_runtime.kernels.row_sampler import BuildRowSampler


@dataclass(frozen=True, slots=True, kw_only=True)
class Ops:
    """name is shown in the banner. An operation may consume (overwrite) its first argument; nothing else is changed.

    fallback: why this table serves and not the faster one that the device has, empty when it is the one.
    decoder_step: a whole forward pass as one operation, None where the backend has none.
    row_sampler: sampling with all that requests change in their logits, for rows on the host; None as above.
    set_threads: compute with so many threads of the host from now on.
    invariant_dtypes: compute types in which a token's result has the same bits whatever else its step computes.
    packs_bfloat16: weights in bfloat16 are packed, and their products quicker than those of float32 on any processor.
    collectives: of the processes that compute the model together, each a part of every layer; None where there is one.
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
    gated_delta: GatedDelta
    act_and_mul: act_and_mul.ActAndMul
    sample: Callable[[Tensor, sample.Draws], Tensor]
    argmax: Callable[[Tensor], Tensor]
    logprobs: logprobs.ComputeLogprobs
    copy_blocks: Callable[[Tensor, Tensor, Tensor], None]
    penalties: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]
    bitmask: Callable[[Tensor, Tensor, Tensor], None]
    step_inputs: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, int, int, int], step_inputs.StepInputs]
    append_ids: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]
    quantize: Quantize
    decoder_step: BuildDecoderStep | None = None
    row_sampler: BuildRowSampler | None = None
    set_threads: Callable[[int], None] = torch.set_num_threads
    invariant_dtypes: tuple[torch.dtype, ...] = ()
    packs_bfloat16: bool = False
    collectives: Collectives | None = None
