"""Products and changes of logits compile for Hopper at the shapes of real models; no product spills registers."""

from collections.abc import Iterator

import pytest
import torch

triton = pytest.importorskip("triton")

from fakes.hopper import Hopper  # noqa: E402 -- behind the question whether there is a triton
from kvasir_runtime.kernels.gpu.table import TRITON  # noqa: E402

VOCAB = 128_256


@pytest.fixture(scope="module")
def hopper() -> Iterator[Hopper]:
    fake = Hopper()
    triton.runtime.driver.set_active(fake)
    yield fake
    triton.runtime.driver.set_active(None)


def test_changes_of_logits_compile(hopper: Hopper) -> None:
    logits, slots = torch.zeros(2, VOCAB), torch.tensor([0, -1])
    counts, in_prompt = torch.zeros(1, VOCAB, dtype=torch.int32), torch.zeros(1, VOCAB, dtype=torch.bool)
    TRITON.penalties(logits, slots, counts, in_prompt, torch.ones(1, 3))
    TRITON.bitmask(logits, torch.zeros(1, VOCAB // 32, dtype=torch.int32), slots)
    assert [hopper.spilled_bytes(name) for name in ("_penalise", "_forbid")] == [[0], [0]]
