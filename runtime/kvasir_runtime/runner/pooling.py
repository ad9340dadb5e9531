"""Pools prompts into vectors: sums of hidden states per row over the chunks of a prompt, then the model's head.

Called by the runner with the hidden states of the pooled positions of each step. A mean does not depend on how the
prompt was cut into chunks: the sum of earlier chunks stays on the device until the last chunk is computed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kvasir_runtime.core.plan import Chunk, StepPlan, hidden_of
from kvasir_runtime.runner.state.device_stream import DeviceStream
from kvasir_runtime.wire import PoolingConfig

ROWS_AT_ONCE = 64
"""Rows of logits computed at a time, since a vocabulary is wide."""

HEADS: Final = ("labels", "tokens")
"""Kinds of pooling that a head follows."""

Head = Callable[[Tensor], Tensor]
DENSE_ACTIVATIONS: Final[dict[str, Head]] = {"Identity": lambda x: x, "Tanh": torch.tanh}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """A layer behind pooling. weight: (numbers behind it, numbers before it) float32; bias: of as many, or None."""

    weight: Tensor
    bias: Tensor | None
    activation: Head

    def __call__(self, vector: Tensor) -> Tensor:
        """Of one vector at a time, so that it has the same numbers whatever else is pooled."""
        return self.activation(F.linear(vector, self.weight, self.bias))


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledVectors:
    """Complete vectors of a step. packed: all of them, one after another, float32; sizes: of each."""

    packed: Tensor
    sizes: tuple[int, ...]

    def unpacked(self) -> tuple[bytes, ...]:
        """Each as little-endian float32, empty where it is not finite; packed must be in host memory."""
        ends = np.cumsum(self.sizes)
        parts = np.split(self.packed.numpy().astype("<f4", copy=False), ends[:-1])
        return tuple(part.tobytes() if np.isfinite(part).all() else b"" for part in parts)


@dataclass(slots=True)
class _Row:
    """pooling: how the prompt of prompt_tokens is pooled. total: sum of earlier chunks, (hidden_size,) float32."""

    pooling: PoolingConfig
    prompt_tokens: int
    total: Tensor | None = None


class Pooler:
    """Sums of the rows that are pooled. head: hidden states to logits of the model's head, of any kind. self.dense:
    layers that vectors go through where no head follows.
    """

    def __init__(self, head: Head, stream: DeviceStream) -> None:
        self.dense: Sequence[Dense] = ()
        self._head = head
        self._stream = stream
        self._rows: dict[int, _Row] = {}

    def apply(self, plan: StepPlan) -> None:
        """Remove the rows that leave, add those that join; after a preemption a prompt is summed from its beginning."""
        if not self._rows and all(join.pooling is None for join in plan.joins):
            return
        for row in plan.leaves:
            self._rows.pop(row, None)
        for join in plan.joins:
            self._rows.pop(join.row, None)
            if join.pooling is not None:
                self._rows[join.row] = _Row(join.pooling, join.prompt_tokens)

    def pool(self, hidden: Tensor, chunks: Sequence[Chunk]) -> PooledVectors | None:
        """Add a step; returns the vectors that it completes, in the order of their chunks.

        hidden: (positions, hidden_size) of the positions that the chunks pool, in their order.
        """
        pooling = [chunk for chunk in chunks if chunk.pools[0] < chunk.pools[1]]
        parts = hidden.split([chunk.pools[1] - chunk.pools[0] for chunk in pooling])
        complete = []
        for chunk, part in zip(pooling, parts, strict=True):
            row = self._rows[chunk.row]
            total = part[0].float() if len(part) == 1 else part.sum(dim=0, dtype=torch.float32)
            row.total = total if row.total is None else row.total + total
            if chunk.start + chunk.num_tokens == row.prompt_tokens:
                complete.append(self._vector(row, part))
        if not complete:
            return None
        made = self._through_head(complete)
        return PooledVectors(packed=torch.cat(made), sizes=tuple(len(vector) for vector in made))

    def _vector(self, row: _Row, part: Tensor) -> tuple[PoolingConfig, Tensor]:
        """The pooled hidden state, in the model's dtype where a head follows; else what layers behind it make of it."""
        assert row.total is not None
        pooled = row.total / row.prompt_tokens if hidden_of(row.pooling) == "mean" else row.total
        if row.pooling.kind in HEADS:
            return row.pooling, pooled.to(part.dtype)
        for layer in self.dense:
            pooled = layer(pooled)
        return row.pooling, pooled

    def _through_head(self, complete: Sequence[tuple[PoolingConfig, Tensor]]) -> list[Tensor]:
        made = [vector for _, vector in complete]
        places = [place for place, (pooling, _) in enumerate(complete) if pooling.kind in HEADS]
        for start in range(0, len(places), ROWS_AT_ONCE):
            some = places[start : start + ROWS_AT_ONCE]
            logits = self._head(torch.stack([made[place] for place in some])).float()
            for place, row in zip(some, logits, strict=True):
                pooling = complete[place][0]
                ids = np.array(pooling.token_ids, dtype=np.int64)
                made[place] = row if pooling.kind == "labels" else row[self._stream.upload(ids)]
        return made
