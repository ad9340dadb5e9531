"""The forward pass of one stage of a decoder: hidden states come from the stage before, and go to the one behind.

Called in the processes of all stages, by `ranks`. Parts of a step are in the stages at once, and so are several steps:
the first stage begins the next one when it has sent what it computed of this. What the last stage computed for the
wanted rows goes to rank 0 when it has all, and one row where none is wanted: a step has ended in all stages when it has
at rank 0.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from kvasir_runtime.kernels.collectives import StageCollectives
from kvasir_runtime.kernels.decoder_step import ForwardOutput
from kvasir_runtime.kernels.kv_cache import KvCache
from kvasir_runtime.layers import micro_batches
from kvasir_runtime.layers.batch import Batch
from kvasir_runtime.layers.spec import DecoderSpec

Compute = Callable[[Batch, KvCache], ForwardOutput]


def forward(
    compute: Compute, spec: DecoderSpec, dtype: torch.dtype, group: StageCollectives, batch: Batch, cache: KvCache
) -> None:
    """Compute this stage's part of a step, and send it.

    compute: this stage's layers, which gives all tokens where it has no wanted rows.
    """
    tokens, rows = batch.token_ids.shape[0], batch.logit_rows
    rows = torch.arange(tokens) if rows is None else rows
    if not rows.shape[0]:
        rows = torch.tensor([tokens - 1])  # so that rank 0 does not go on while this step is in stages
    given = replace(batch, logit_rows=rows)
    whole = spec.state is not None
    result = new_result(given, spec, dtype)
    for part in micro_batches.cut(given, group.stages, whole_sequences=whole):
        of_stage = part.batch if spec.is_last else replace(part.batch, logit_rows=None)
        if not spec.is_first:
            received = torch.empty(of_stage.token_ids.shape[0], spec.hidden_size, dtype=dtype)
            of_stage = replace(of_stage, embeddings=group.receive(received))
        hidden = compute(of_stage, cache).hidden
        if spec.is_last:
            result[part.places] = hidden
        else:
            group.send(hidden)
    if spec.is_last:
        group.send(result)


def new_result(batch: Batch, spec: DecoderSpec, dtype: torch.dtype) -> Tensor:
    """Memory for what the last stage sends of a step: (rows, hidden_size), at least one row."""
    return torch.empty(max(_num_wanted(batch), 1), spec.hidden_size, dtype=dtype)


def received(result: Tensor, group: StageCollectives, batch: Batch) -> ForwardOutput:
    """What `Decoder.forward` gives of the oldest step that rank 0 has not received. result: of `new_result`."""
    return ForwardOutput(hidden=group.receive(result)[: _num_wanted(batch)])


def _num_wanted(batch: Batch) -> int:
    return len(batch.token_ids if batch.logit_rows is None else batch.logit_rows)
