"""Copies of experts with many tokens on other ranks than their own, chosen by what was routed lately.

Rank 0 decides, since all ranks see the same numbers. The others are sent what each is to read of the checkpoint, which
threads do while steps are computed; from then on rank 0 looks whether its own is there, and says when all use them.
Called by `ranks` between passes, on every rank in the same order.
"""

import logging
import threading
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from functools import partial

import msgspec
import torch
from torch import Tensor

from kvasir_runtime.kernels.act_and_mul import Activation
from kvasir_runtime.kernels.collectives import Collectives
from kvasir_runtime.kernels.copied_experts import CopiedExperts
from kvasir_runtime.kernels.expert_division import Copies
from kvasir_runtime.kernels.grouped_experts import GroupedExperts
from kvasir_runtime.kernels.linear import Weight
from kvasir_runtime.kernels.moe import NO_BIASES, BuildMoe, ExpertBiases, RoutedExperts, Routing
from kvasir_runtime.layers import expert_placement

LOG = logging.getLogger(__name__)
Tensors = MutableMapping[str, Weight]
ReadExperts = Callable[[Mapping[int, tuple[int, ...]]], Tensors]
"""Tensors of the given experts of each layer, by their names of a decoder; it may raise whatever reading raises."""


class ReadCopies(msgspec.Struct, frozen=True, tag=True):
    """Begin to read copies, by layer those of each rank, in place of what these layers have."""

    copies: dict[int, Copies]


class UseCopies(msgspec.Struct, frozen=True, tag=True):
    """Compute with what was read, if every rank has read its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRoom:
    """homes: of each rank, the experts that are its own. room: of each rank, copies of each layer. layers: those with
    experts, in order. window: steps that count. interval: passes from one choice to the next.
    """

    homes: tuple[range, ...]
    room: tuple[int, ...]
    layers: tuple[int, ...]
    window: int
    interval: int


class ExpertCopies:
    """Of one process. Its methods are called by one thread."""

    failure = ""
    """Why nothing is read any more, of this rank; "" while it is."""

    def __init__(self, room: CopyRoom, group: Collectives, first: str, read: ReadExperts) -> None:
        """first: as of `ExpertsSpec.first`. read: called by another thread."""
        self._room, self._group, self._first, self._read = room, group, first, read
        self._layers = dict[int, CopiedExperts]()
        self._builders = dict[int, Callable[[Weight, Weight, Routing, ExpertBiases], RoutedExperts]]()
        self._reading: threading.Thread | None = None
        self._found = dict[int, GroupedExperts | None]()
        self._copies = dict[int, Copies]()
        self._passes, self._ended = 0, False

    @property
    def rows(self) -> tuple[int, ...]:
        """Of all steps and layers, that each rank's experts have computed."""
        return tuple(sum(int(layer.rows[rank]) for layer in self._layers.values()) for rank in range(self._group.ranks))

    @property
    def copies(self) -> dict[int, Copies]:
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
            index = self._room.layers[len(self._layers)]
            self._builders[index] = partial(_built, build, router.new_zeros(1, router.shape[1]), activation)
            self._layers[index] = CopiedExperts(own, self._room.homes, self._group.rank, self._room.window)
            return self._layers[index]

        return built

    def due(self) -> ReadCopies | UseCopies | None:
        """At rank 0, before each pass: what all ranks are to do first."""
        self._passes += 1
        if self._reading is not None:
            return None if self._reading.is_alive() else UseCopies()
        if self._ended or self._passes < self._room.interval:
            return None
        self._passes, homes = 0, self._room.homes
        chosen = dict[int, Copies]()
        for index, layer in self._layers.items():
            tokens = layer.tokens.tolist()
            copies = expert_placement.placed(tokens, homes, self._room.room)
            if expert_placement.is_worth(tokens, homes, layer.copies, copies):
                chosen[index] = copies
        return ReadCopies(chosen) if chosen else None

    def apply(self, message: ReadCopies | UseCopies) -> None:
        """On every rank."""
        if isinstance(message, ReadCopies):
            self._copies = message.copies
            for index in self._copies:  # first, so that both are never in memory
                self._layers[index].use(((),) * self._group.ranks, None)
            self._reading = threading.Thread(target=self._read_all, daemon=True, name="expert copies")
            self._reading.start()
            return
        assert self._reading is not None
        self._reading.join()
        self._reading = None
        lacking = self._group.all_reduce(torch.tensor([float(self.failure != "")]))
        if lacking.item():
            self._ended = True
        else:
            for index, copies in self._copies.items():
                self._layers[index].use(copies, self._found[index])
        self._found, self._copies = {}, {}

    @torch.inference_mode()
    def _read_all(self) -> None:
        """Into `_found`. What goes wrong leaves all ranks without copies, and ends nothing."""
        wanted = {index: copies[self._group.rank] for index, copies in self._copies.items()}
        try:
            tensors = self._read({index: experts for index, experts in wanted.items() if experts})
            for index, experts in wanted.items():
                self._found[index] = self._built(index, len(experts), tensors) if experts else None
        except Exception as error:  # noqa: BLE001 -- whatever reading and packing raise
            self._found, self.failure = {}, " ".join(str(error).split()) or type(error).__name__
            LOG.warning("experts are not copied any more: rank %d cannot read them: %s", self._group.rank, self.failure)

    def _built(self, index: int, experts: int, tensors: Tensors) -> GroupedExperts:
        prefix, own = f"layers.{index}.experts.", self._layers[index].routing
        biases = (tensors.pop(f"{prefix}{name}.bias", None) for name in ("gate_up", "down"))
        of_up, of_down = (bias if isinstance(bias, Tensor) else None for bias in biases)
        first, down = (tensors.pop(f"{prefix}{name}.weight") for name in (self._first, "down"))
        routing = replace(own, held=range(experts))
        built = self._builders[index](first, down, routing, ExpertBiases(gate_up=of_up, down=of_down))
        assert isinstance(built, GroupedExperts)
        return built


def _built(
    build: BuildMoe,
    router: Tensor,
    activation: Activation,
    gate_up: Weight,
    down: Weight,
    routing: Routing,
    biases: ExpertBiases,
) -> RoutedExperts:
    """Experts that others choose: their router is none."""
    return build(router, gate_up, down, routing, biases, activation)
