"""What the forward pass reads of a step, made from the rows of its sequences on the device, where sampled ids are.

    for i in sequences:
        row, count = rows[i], starts[i + 1] - starts[i]
        kv_lens[i] = lens[row] + count
        block_tables[:, i] = tables[:, row]
        for t in range(starts[i], starts[i + 1]):
            position = positions[t] = lens[row] + t - starts[i]
            token_ids[t] = tokens[row, position]
            for g in groups: slots[g, t] = tables[g, row, position / block_size] * block_size + position % block_size

rows:   (sequences,) int64; starts: (sequences + 1,) int32, from 0 to num_tokens; longest: no sequence has more tokens
lens:   (rows,) int32, computed positions of every row; tokens: (rows, positions) int32; tables: (groups, rows, blocks)
        int32, of each cache group
out:    token_ids, positions: (num_tokens,) int64; slots: (groups, num_tokens) int64; kv_lens: (sequences,) int32;
        block_tables: (groups, sequences, blocks) int32, copied whole
Exact. The sizes are the host's, nothing else is: it may be part of a recorded step.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor


class StepInputs(NamedTuple):
    """The module docstring's out."""

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    kv_lens: Tensor
    block_tables: Tensor


def reference(
    rows: Tensor,
    starts: Tensor,
    lens: Tensor,
    tokens: Tensor,
    tables: Tensor,
    block_size: int,
    num_tokens: int,
    longest: int,
) -> StepInputs:
    """The module docstring, on any device."""
    computed, block_tables = lens[rows], tables[:, rows]
    counts, device = starts[1:] - starts[:-1], rows.device
    owners = torch.arange(rows.shape[0], device=device)
    if longest > 1:
        owners = torch.repeat_interleave(owners, counts, output_size=num_tokens)
    offsets = torch.arange(num_tokens, device=device) - starts[owners]
    positions = computed[owners] + offsets
    blocks = block_tables[:, owners, positions // block_size].long()
    return StepInputs(
        token_ids=tokens[rows[owners], positions].long(),
        positions=positions,
        slots=blocks * block_size + positions % block_size,
        kv_lens=computed + counts,
        block_tables=block_tables,
    )


def cases(generator: torch.Generator) -> Iterator[tuple[object, ...]]:
    """Decode, prompts, both; one cache group and several; rows in any order, one of them twice as padding is."""
    for groups, counts in ((1, [1]), (3, [1, 1, 1, 1]), (1, [1, 37, 2]), (2, [70])):
        lens = torch.randint(0, 20, (6,), generator=generator, dtype=torch.int32)
        tokens = torch.randint(0, 500, (6, 100), generator=generator, dtype=torch.int32)
        tables = torch.randperm(groups * 6 * 25, generator=generator).view(groups, 6, 25).int()
        rows = torch.randperm(6, generator=generator)[: len(counts)]
        if len(counts) == 4:
            rows[3] = rows[2]
        starts = torch.tensor([0, *counts]).cumsum(0).int()
        yield rows, starts, lens, tokens, tables, 4, sum(counts), max(counts)
