"""Copies of experts with many tokens on other ranks than their own, chosen by what was routed lately.

Every rank counts passes, so all act before the same one. When an interval is over, all get the counts of rank 0, and a
thread of each finds what every rank should have of the next layer that gains by it, and reads its own from the
checkpoint. Every few passes all sum who is done: only when all are, they compute with what they read, from the same
pass on, and the next layer follows. No pass waits for a thread, but perhaps for the pool of the operations' threads,
in which a reader packs too.
"""

import logging
import threading
import weakref
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from torch import Tensor

from kvasir_api.eplb import EplbConfig
from kvasir_runtime.kernels.act_and_mul import Activation
from kvasir_runtime.kernels.collectives import Collectives
from kvasir_runtime.kernels.copied_experts import CopiedExperts, Copies
from kvasir_runtime.kernels.expert_routing import Routing
from kvasir_runtime.kernels.linear import Weight
from kvasir_runtime.kernels.moe import NO_BIASES, BuildMoe, ExpertBiases, GroupedExperts, RoutedExperts
from kvasir_runtime.layers import expert_placement
from kvasir_runtime.layers.expert_placement import Counts

LOG = logging.getLogger(__name__)
LOOK_PASSES: Final = 16
"""From one look whether all ranks have read to the next: it is an exchange of two numbers."""
END_S: Final = 5.0
"""How long the end of the process waits for a thread that reads, which ends with the next piece."""
Tensors = MutableMapping[str, Weight]
ReadExperts = Callable[[int, tuple[int, ...], Callable[[], None]], Tensors]
"""Tensors of experts of a layer, by their names within `layers.N.experts.`. It calls the last after each piece, whose
exceptions end it, and raises whatever reading raises.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRoom:
    """homes: of each expert, the rank whose own it is. copies: that each rank has room for in each layer. layers: those
    with experts, in order. config: as given; its number of copies may be 0.
    """

    homes: tuple[int, ...]
    copies: int
    layers: tuple[int, ...]
    config: EplbConfig


class ExpertCopies:
    """Of one process. Its methods are called by one thread.

    failure: why this rank reads nothing any more; "" while it does.
    """

    def __init__(self, room: CopyRoom, group: Collectives, first: str, read: ReadExperts) -> None:
        """first: name of `ExpertsSpec.first`. read: called by a thread of its own."""
        self.failure = ""
        self._room, self._group, self._first, self._read = room, group, first, read
        self._layers = dict[int, CopiedExperts]()
        self._builders = dict[int, Callable[[Weight, Weight, ExpertBiases, int], RoutedExperts]]()
        self._passes, self._ended = 0, False
        self._reader: threading.Thread | None = None
        self._wanted: list[tuple[int, Counts]] = []
        self._found: tuple[int, Copies, GroupedExperts | None] | None = None
        self._stop, self._threads = threading.Event(), list[threading.Thread]()
        weakref.finalize(self, _end, self._stop, self._threads)

    @property
    def copies(self) -> Mapping[int, Copies]:
        """That are in use, by layer."""
        return {index: layer.copies for index, layer in self._layers.items()}

    def builder(self, build: BuildMoe) -> BuildMoe:
        """The same for experts that are copied. It is called once for each layer that has experts, in their order."""

        def built(
            router: Tensor,
            gate_up: Weight,
            down: Weight,
            routing: Routing,
            biases: ExpertBiases = NO_BIASES,
            activation: Activation = "silu",
        ) -> RoutedExperts:
            own = build(router, gate_up, down, routing, biases, activation)
            assert isinstance(own, GroupedExperts)
            nothing = router.new_zeros(1, router.shape[1])  # own chooses copies too: they have no router

            def copied(first: Weight, down: Weight, biases: ExpertBiases, count: int) -> RoutedExperts:
                return build(nothing, first, down, replace(routing, held=range(count)), biases, activation)

            index = self._room.layers[len(self._layers)]
            self._builders[index] = copied
            self._layers[index] = CopiedExperts(own, self._room.homes, self._group.rank, self._group.ranks)
            return self._layers[index]

        return built

    def advance(self) -> None:
        """Before each pass, on every rank."""
        self._passes += 1
        interval, window = self._room.config.step_interval, self._room.config.window_size
        if self._reader is not None:
            if self._passes % min(LOOK_PASSES, interval) == 0:
                self._look(self._reader)
        elif self._passes >= interval and not self._ended:
            self._passes, self._wanted = 0, self._counts()
            self._begin()
        if self._passes == interval - window:
            self._forget()

    def _counts(self) -> list[tuple[int, Counts]]:
        """Tokens of the experts of each layer, as rank 0 has counted them: the others have no counts."""
        counted = torch.tensor(np.stack([layer.tokens for layer in self._layers.values()]), dtype=torch.float32)
        whole = self._group.all_reduce(counted)
        self._forget()
        counts = list(zip(self._layers, whole.to(torch.int64).numpy(), strict=True))
        if self._room.config.log_balancedness and self._group.rank == 0:
            self._log(counts)
        return counts

    def _forget(self) -> None:
        for layer in self._layers.values():
            layer.tokens[:] = 0

    def _log(self, counts: list[tuple[int, Counts]]) -> None:
        homes = self._room.homes
        loads = np.stack([expert_placement.loads(each, homes, self._layers[index].copies) for index, each in counts])
        most, copies = int(loads.max(axis=1).sum()), sum(sum(map(len, held)) for held in self.copies.values())
        LOG.info(
            "balancedness of experts %.2f with %d copies in %d layers: the mean load of ranks, of the largest",
            loads.mean(axis=1).sum() / most if most else 1.0,
            copies,
            len(counts),
        )

    def _begin(self) -> None:
        """Go on with the layers that are wanted."""
        name = f"expert copies of rank {self._group.rank}"
        self._reader = threading.Thread(target=self._read_next, daemon=True, name=name)
        try:
            self._reader.start()
        except RuntimeError as error:  # the system has no thread left
            self._fail(error)
        else:
            self._threads[:] = [self._reader]

    def _look(self, reader: threading.Thread) -> None:
        """Use what was read if all ranks have read theirs."""
        is_done = not reader.is_alive()
        flags = torch.tensor([float(is_done), float(is_done and self.failure != "")])
        num_done, num_failed = self._group.all_reduce(flags).tolist()
        if num_failed:
            self._reader, self._ended = None, True
            self._stop.set()  # the reader of this rank may go on
            self._found = None
            if not self.failure:
                LOG.warning("experts are not copied any more: another rank cannot read them")
        elif num_done == self._group.ranks:
            self._reader = None
            if self._found is not None:
                index, copies, experts = self._found
                self._found = None
                self._layers[index].use(copies, experts)
                self._begin()

    @torch.inference_mode()
    def _read_next(self) -> None:
        """Of the first layer that gains, into `_found`. What goes wrong leaves the copies that there are, and ends
        nothing.
        """
        try:
            while self._wanted:
                index, tokens = self._wanted.pop(0)
                old = self._layers[index].copies
                copies = expert_placement.placed(tokens, self._room.homes, old, self._room.copies)
                if copies != old:
                    own = copies[self._group.rank]
                    self._found = index, copies, self._built(index, own) if own else None
                    if self._stop.is_set():  # perhaps since `_look` dropped it
                        self._found = None
                    return
        except Exception as error:  # noqa: BLE001 -- whatever reading and packing raise
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self._stop.is_set():
            return
        self.failure = " ".join(str(error).split()) or type(error).__name__
        LOG.warning("experts are not copied any more: rank %d cannot read them: %s", self._group.rank, self.failure)

    def _built(self, index: int, experts: tuple[int, ...]) -> GroupedExperts:
        tensors = self._read(index, experts, self._go_on)
        biases = (tensors.pop(f"{name}.bias", None) for name in ("gate_up", "down"))
        of_up, of_down = (bias if isinstance(bias, Tensor) else None for bias in biases)
        first, down = (tensors.pop(f"{name}.weight") for name in (self._first, "down"))
        built = self._builders[index](first, down, ExpertBiases(gate_up=of_up, down=of_down), len(experts))
        assert isinstance(built, GroupedExperts)
        return built

    def _go_on(self) -> None:
        if self._stop.is_set():
            raise RuntimeError("nothing is read any more")


def _end(stop: threading.Event, threads: list[threading.Thread]) -> None:
    """At the end of the process: the interpreter may not go while a thread computes."""
    stop.set()
    for thread in threads:
        if thread is not threading.current_thread():  # which may have had the last use of the copies
            thread.join(END_S)
