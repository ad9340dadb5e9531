"""The inputs of a step in one kernel: a few programs share each sequence's tokens and the blocks of its table."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvasir_runtime.kernels.gpu.options import options
from kvasir_runtime.kernels.step_inputs import StepInputs

# One size for all steps: a compilation for each would be waited for while serving.
_BLOCK = 256
_MOST_PROGRAMS = 64


def launch(
    rows: Tensor,
    starts: Tensor,
    lens: Tensor,
    tokens: Tensor,
    tables: Tensor,
    block_size: int,
    num_tokens: int,
    longest: int,
) -> StepInputs:
    """kernels.step_inputs."""
    (groups, _, columns), sequences, device = tables.shape, rows.shape[0], rows.device
    # An even stride keeps each of them at a multiple of 16 bytes, for which kernels are compiled.
    wide = torch.empty((2 + groups, num_tokens + num_tokens % 2), dtype=torch.int64, device=device)[:, :num_tokens]
    kv_lens = torch.empty((sequences,), dtype=torch.int32, device=device)
    block_tables = torch.empty((groups, sequences, columns), dtype=torch.int32, device=device)
    programs = min(_MOST_PROGRAMS, -(-max(longest, columns) // _BLOCK))
    token_ids, positions, slots = wide[0], wide[1], wide[2:]
    _step_inputs[(sequences, programs, groups)](
        rows, starts, lens, tokens, tables, token_ids, positions, slots, kv_lens, block_tables, columns, block_size,
        tokens.stride(0), *tables.stride()[:2], slots.stride(0), BLOCK=_BLOCK, **options(_BLOCK),
    )  # fmt: skip
    return StepInputs(token_ids, positions, slots, kv_lens, block_tables)


@triton.jit(do_not_specialize=["columns", "block_size"])
def _step_inputs(
    rows, starts, lens, tokens, tables, token_ids, positions, slots, kv_lens, block_tables, columns, block_size,
    tokens_stride, group_stride, tables_stride, slots_stride, BLOCK: tl.constexpr,
):  # fmt: skip
    sequence, group, lanes = tl.program_id(0), tl.program_id(2), tl.arange(0, BLOCK)
    tables += group.to(tl.int64) * group_stride
    slots += group.to(tl.int64) * slots_stride
    block_tables += group.to(tl.int64) * tl.num_programs(0) * columns
    row = tl.load(rows + sequence)
    first = tl.load(starts + sequence)
    count = tl.load(starts + sequence + 1) - first
    computed = tl.load(lens + row)
    table = tables + row * tables_stride
    if tl.program_id(1) == 0:
        tl.store(kv_lens + sequence, computed + count)
    for base in range(tl.program_id(1) * BLOCK, columns, tl.num_programs(1) * BLOCK):
        column = base + lanes
        blocks = tl.load(table + column, mask=column < columns, other=0)
        tl.store(block_tables + sequence.to(tl.int64) * columns + column, blocks, mask=column < columns)
    for base in range(tl.program_id(1) * BLOCK, count, tl.num_programs(1) * BLOCK):
        mask = base + lanes < count
        position = (computed + base + lanes).to(tl.int64)
        token = tl.load(tokens + row * tokens_stride + position, mask=mask, other=0)
        block = tl.load(table + position // block_size, mask=mask, other=0).to(tl.int64)
        at = first + base + lanes
        tl.store(token_ids + at, token.to(tl.int64), mask=mask)
        tl.store(positions + at, position, mask=mask)
        tl.store(slots + at, block * block_size + position % block_size, mask=mask)
