"""Rows on the host hold what plans write, and memory for that alone."""

import mmap

import numpy as np

from kvasir_runtime.core.plan import Join, StepPlan
from kvasir_runtime.runner.startup import host_resources
from kvasir_runtime.runner.state.host_state import HostRowState
from kvasir_runtime.wire import SamplingConfig

ROWS, LONGEST = 256, 131_072


def joined(row: int, num_tokens: int) -> Join:
    return Join(
        row=row,
        request_id=str(row),
        tokens=tuple(range(row, row + num_tokens)),
        prompt_tokens=num_tokens,
        computed_tokens=0,
        tables=((row,),),
        sampling=SamplingConfig(max_tokens=1),
    )


def test_rows_take_the_pages_of_what_they_hold() -> None:
    state = HostRowState(
        max_sequences=ROWS, max_model_len=LONGEST, block_size=16, num_groups=1, eos_token_ids=(0,)
    )  # 140 MB if all of it were resident
    before = host_resources.resident_bytes()
    state.apply(StepPlan(step=0, joins=tuple(joined(row, 1000) for row in range(ROWS))))
    assert host_resources.resident_bytes() - before < 2 * ROWS * mmap.PAGESIZE + (8 << 20)
    ids, tables, _ = state.arrays
    assert ids.shape == (ROWS, LONGEST + 1)
    assert all(np.array_equal(ids[row, :1001], [*range(row, row + 1000), 0]) for row in range(ROWS))
    assert tables[0, :, 0].tolist() == list(range(ROWS))
    assert state.free_positions(1000) == LONGEST - 999
    assert all((ids.ctypes.data + row * ids.strides[0]) % mmap.PAGESIZE == 0 for row in range(ROWS))
