"""What every section of the benchmark is given, and how it says that there was no time."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bench.gpu import models
from bench.gpu.book import Book, Cell
from bench.gpu.floors import Ceilings, ceilings_of
from bench.gpu.sizes import Sizes
from bench.shapes import Work, work


@dataclass(slots=True, kw_only=True)
class Context:
    """folder: where models are made. book: what the run measured so far. until: when the section must have ended."""

    sizes: Sizes
    device: str
    folder: Path
    book: Book
    until: float
    clock: Callable[[], float] = time.monotonic
    made: dict[str, Any] = field(default_factory=dict)

    @property
    def left_s(self) -> float:
        """Seconds that this section may still take."""
        return self.until - self.clock()

    @property
    def torch_device(self) -> torch.device:
        """For what is measured without an engine."""
        return torch.device(self.device)

    @property
    def work(self) -> Work:
        """What a token costs in the model."""
        return work(self.sizes.shape)

    @property
    def head(self) -> int:
        """Weights of the output layer."""
        return self.sizes.shape.vocab_size * self.sizes.shape.hidden_size

    @property
    def model(self) -> Path:
        """The checkpoint, made by whoever asks first."""
        return models.provided(self.folder / "model", self.sizes.shape, self.torch_device)

    def weight_bytes(self, quantization: str) -> float:
        """Of all weights that a step reads; the output layer stays as it is in fp8, and takes 8 bits beside int4."""
        layers, wide = self.work.weights - self.head, self.sizes.shape.dtype.itemsize
        each = {"none": (wide, wide), "fp8": (1.0, wide), "int8": (1.0625, 1.0625), "int4": (0.625, 1.0625)}
        body, head = each[quantization]
        return layers * body + self.head * head

    def ceilings(self, quantization: str = "none") -> Ceilings:
        """Those of this run."""
        return ceilings_of(self.book, "fp8" if quantization == "fp8" else self.sizes.dtype)


Section = Callable[[Context], Iterator[Cell]]
NO_TIME = "no time was left"
