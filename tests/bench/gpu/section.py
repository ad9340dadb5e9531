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

    @property
    def far_model_len(self) -> int:
        """Tokens of a sequence behind the far prefix."""
        return min(self.sizes.far_prefix + 2048, self.sizes.shape.max_position_embeddings)

    @property
    def table_bytes(self) -> int:
        """Of the table of embeddings, of which a step reads a few rows only."""
        return self.head * self.sizes.shape.dtype.itemsize

    @property
    def weight_bytes(self) -> float:
        """Of all weights that a step reads in the model's own type."""
        return float(self.work.weights * self.sizes.shape.dtype.itemsize)

    def ceilings(self, quantization: str = "") -> Ceilings:
        """Those of this run, for weights as the engine says that it holds them."""
        return ceilings_of(self.book, "fp8" if "fp8" in quantization else self.sizes.dtype)


Section = Callable[[Context], Iterator[Cell]]
NO_TIME = "no time was left"
