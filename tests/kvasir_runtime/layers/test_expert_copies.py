"""Copies of experts of one rank by itself: what its log says, and how it ends."""

import logging
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kvasir_api.eplb import EplbConfig
from kvasir_runtime.kernels.cpu.ops import CPU
from kvasir_runtime.kernels.expert_routing import Routing
from kvasir_runtime.kernels.linear import Linear
from kvasir_runtime.kernels.moe import BuildMoe, GroupedExperts, RoutedExperts
from kvasir_runtime.layers.expert_copies import CopyRoom, ExpertCopies

EVERY = EplbConfig(window_size=1, step_interval=1)


class Pair:
    """Rank 1 of 2; what rank 0 adds to a sum is given."""

    rank, ranks = 1, 2

    def __init__(self) -> None:
        self.given = torch.zeros(2)

    def all_reduce(self, x: Tensor) -> Tensor:
        """Rank 0 counts many tokens of its first expert."""
        return x + (torch.tensor([[90.0, 1, 1, 1]]) if x.dim() == 2 else self.given)


class Leader:
    """Rank 0 of 2; what it has counted is kept."""

    rank, ranks = 0, 2

    def __init__(self) -> None:
        self.counted: list[list[float]] = []

    def all_reduce(self, x: Tensor) -> Tensor:
        """The other rank gives nothing, and never has read."""
        if x.dim() == 2:
            self.counted += x.tolist()
        return x


def copies_of(group: Any, read: Any, build: BuildMoe = CPU.moe) -> ExpertCopies:
    copies = ExpertCopies(room_of(EVERY), group, "gate_up", read)
    layer_of(copies, group.rank, build)
    return copies


def room_of(config: EplbConfig) -> CopyRoom:
    return CopyRoom(homes=(0, 0, 1, 1), copies=1, layers=(3,), config=config)


def layer_of(copies: ExpertCopies, rank: int, build: BuildMoe = CPU.moe) -> RoutedExperts:
    """Its router chooses the first expert for every token."""
    routing = Routing(top_k=1, renormalised=True, held=range(2 * rank, 2 * rank + 2))
    return copies.builder(build)(torch.zeros(4, 8), torch.zeros(2 * 32, 8), torch.zeros(2 * 8, 16), routing)


def test_the_last_passes_of_an_interval_decide() -> None:
    """Two of five: those before the pass at which all get the counts."""

    def read(layer: int, experts: tuple[int, ...], go_on: Callable[[], None]) -> dict[str, Tensor]:
        raise AssertionError("rank 1 alone has copies")

    group, config = Leader(), EplbConfig(window_size=2, step_interval=5)
    copies = ExpertCopies(room_of(config), group, "gate_up", read)
    layer = layer_of(copies, 0)
    for tokens in (1000, 100, 10, 4, 3, 2000, 200):
        copies.advance()
        layer(torch.zeros(tokens, 8))
    assert group.counted == [[14.0, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize("is_stopped", [False, True])
def test_what_was_read_is_not_used_where_another_rank_cannot_read(
    caplog: pytest.LogCaptureFixture, is_stopped: bool
) -> None:
    """Nor is anything read after that, or kept: neither of a reader that ends well, nor of one that is stopped."""
    begun, may, group, made = threading.Event(), threading.Event(), Pair(), list[weakref.ref[Linear]]()

    def read(layer: int, experts: tuple[int, ...], go_on: Callable[[], None]) -> dict[str, Tensor]:
        assert (layer, experts) == (3, (0,))
        assert not begun.is_set()
        begun.set()
        assert may.wait(60)
        if is_stopped:
            go_on()
        return {"gate_up.weight": torch.zeros(32, 8), "down.weight": torch.zeros(8, 16)}

    def build(*given: Any) -> RoutedExperts:
        experts = CPU.moe(*given)
        assert isinstance(experts, GroupedExperts)
        made.append(weakref.ref(experts.down[0]))
        return experts

    copies = copies_of(group, read, build)
    with caplog.at_level(logging.WARNING):
        copies.advance()
        assert begun.wait(60)
        copies.advance()
        assert caplog.records == []
        group.given = torch.tensor([1.0, 1.0])
        for _ in range(5):
            copies.advance()
        reader = next(one for one in threading.enumerate() if one.name == "expert copies of rank 1")
        may.set()
        reader.join(60)
    own, *copied = (layer() for layer in made)
    assert own is not None
    assert copied == ([] if is_stopped else [None])
    assert [one.message for one in caplog.records] == ["experts are not copied any more: another rank cannot read them"]
    assert copies.copies == {3: ((), ())}
    assert copies.failure == ""


READS_FOR_EVER = """
import runpy, sys, threading
begun, names = threading.Event(), runpy.run_path(sys.argv[1])
def read(layer, experts, go_on):
    while True:
        begun.set()
        go_on()
copies = names["copies_of"](names["Pair"](), read)
copies.advance()
assert begun.wait(60)
"""


def test_a_process_ends_while_its_thread_reads() -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", READS_FOR_EVER, __file__]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0
    assert ended.stderr == ""


def test_without_a_thread_to_read_nothing_is_copied(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def read(layer: int, experts: tuple[int, ...], go_on: Callable[[], None]) -> dict[str, Tensor]:
        raise AssertionError("no thread reads")

    copies = copies_of(Pair(), read)
    monkeypatch.setattr(threading.Thread, "start", start)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            copies.advance()
    assert [one.message for one in caplog.records] == [
        "experts are not copied any more: rank 1 cannot read them: can't start new thread"
    ]
    assert copies.copies == {3: ((), ())}
