"""One thread: these tensors are tiny, and several test workers share the cores. And a card that only compiles."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def hopper() -> Iterator[Any]:
    """`fakes.hopper.Hopper` as Triton's driver, for files that ask whether there is a triton first."""
    import triton

    from fakes.hopper import Hopper

    fake = Hopper()
    triton.runtime.driver.set_active(fake)
    yield fake
    triton.runtime.driver.set_active(None)


@pytest.fixture
def card(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The same as one of `fakes.hopper.CARDS`, by its name; not beside `hopper`."""
    import triton

    from fakes.hopper import CARDS, Hopper

    fake = Hopper(*CARDS[request.param])
    triton.runtime.driver.set_active(fake)
    yield fake
    triton.runtime.driver.set_active(None)
