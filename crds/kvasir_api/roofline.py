"""How fast could a model decode on a card? The roofline of a step, from the model's sizes and what the card can do.

A step reads its weights and the keys and values of its sequences once, and multiplies each weight with each row; it cannot take
less than the slower of the two. Called by the forecast before a card is taken, and where a replica's measured speed is judged.
After Williams et al. 2009. Pure; what no data sheet states is an allowance, said beside the number.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kvasir_api.cache_groups import LayerAttention
from kvasir_api.model_shape import ModelShape
from kvasir_api.weight_offload import LINK_BYTES_PER_S

STEP_S: Final = 0.0002
LAYER_S: Final = 0.000025
ROW_S: Final = 0.00001
"""What a step takes besides, for itself, for each layer and for each row: drawing, gaps between ten kernels of a layer, the host's
part of a sequence. Allowances, chosen so that a small model on a fast card is not expected to decode at the memory's speed."""

STREAM_CONTEXT: Final = 1024
"""Tokens of context of the one stream that is forecast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What one device can do at best. fp8_flops_per_s: of products of 8 bits by 8 bits, 0 where it has none.

    link_bytes_per_s: to others of its node, in one direction.
    """

    memory_bytes_per_s: int
    flops_per_s: int
    fp8_flops_per_s: int = 0
    link_bytes_per_s: float = LINK_BYTES_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """What steps of a model compute and read, at least. weights_bytes: of all weights as they are held.

    table_bytes: of those, a table of embeddings that is only looked up. kv_bytes: of one token's keys and values in one layer.
    """

    shape: ModelShape
    weights_bytes: int
    table_bytes: int
    kv_bytes: int

    def flops(self, *, tokens: float, heads: float, context: float) -> float:
        """Operations of a step. tokens: that it computes; heads: rows that go through the head over the vocabulary.

        context: positions that attention sees, over all tokens together, were no layer to have a window.
        """
        products = (self._multiplied - self.shape.head) * tokens + self.shape.head * heads
        return 2 * products + self._attention_flops * self._seen(tokens, context)

    def read_bytes(self, *, tokens: float, rows: float, context: float) -> float:
        """Bytes that a step reads. rows: its sequences; context: their tokens together."""
        return self._weights_bytes(tokens) + self.context_bytes(rows, context)

    def context_bytes(self, rows: float, kv_tokens: float) -> float:
        """What that many sequences of equal length read of the cache, and write to states. kv_tokens: their tokens together."""
        states = sum(count for attention, count in self._groups if attention.kind == "state")
        return self.kv_bytes * self._seen(rows, kv_tokens) + 2 * self.shape.state_bytes * states * rows

    def prefill_flops(self) -> float:
        """Of one token of a long prompt, without attention, which grows with it."""
        return 2 * (self._multiplied - self.shape.head)

    def _seen(self, rows: float, kv_tokens: float) -> float:
        """Keys that a step reads, those of each layer counted: a layer with a window sees no further back."""
        each = kv_tokens / rows
        return rows * sum(count * attention.most_seen(each) for attention, count in self._groups)

    @property
    def _groups(self) -> Iterator[tuple[LayerAttention, int]]:
        """Attention and number of layers of each cache group."""
        return zip(self.shape.attentions, self.shape.group_layers or (self.shape.layers,), strict=True)

    @property
    def _multiplied(self) -> int:
        """Weights that a row is multiplied with: a table of embeddings is read by row, unless it is the head as well."""
        return self.shape.active_parameters - self._table

    @property
    def _table(self) -> int:
        """Weights of a table that is only looked up."""
        return lookup_table(self.shape)

    @property
    def _attention_flops(self) -> int:
        """For one token of context in one layer: products with keys and with values."""
        return 4 * self.shape.heads * (self.shape.latent_row or self.shape.head_dim)

    def _weights_bytes(self, rows: float) -> float:
        """Bytes of weights that a step of that many rows reads: of experts those that some row goes to."""
        shape = self.shape
        read = self._multiplied + (shape.parameters - shape.active_parameters) * self._woken(rows)
        return (self.weights_bytes - self.table_bytes) * read / max(shape.parameters - self._table, 1)

    def _woken(self, rows: float) -> float:
        """Share of the experts beyond those of one token that a step reads, 0..1: all go to any expert alike.

        Where their number is not known all are read, so that too little is expected rather than too much.
        """
        number, chosen = self.shape.experts, self.shape.chosen_experts
        if number <= chosen:
            return 1.0
        touched = number * (1 - math.pow(1 - chosen / number, rows))
        return max(0.0, (touched - chosen) / (number - chosen))


def lookup_table(shape: ModelShape) -> int:
    """Weights of a table of embeddings that is not the head as well."""
    return 0 if shape.tied and shape.head else shape.vocabulary * shape.hidden


def table_bytes(shape: ModelShape, dtype: str) -> int:
    """Of that table, which stays in the compute type whatever the quantization."""
    return round(shape.weights_bytes(dtype) * lookup_table(shape) / shape.parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """A model as it would be held on a card. dtype: of activations; kv_bytes: of one token's keys and values in one layer.

    host_weights_bytes: of weights that every step copies from the host, beside what it computes.
    """

    shape: ModelShape
    card: Card
    dtype: str
    quantization: str
    kv_bytes: int
    host_weights_bytes: int = 0

    @property
    def work(self) -> StepWork:
        """What steps compute and read."""
        return StepWork(
            shape=self.shape,
            weights_bytes=self.shape.weights_bytes(self.dtype, self.quantization),
            table_bytes=table_bytes(self.shape, self.dtype),
            kv_bytes=self.kv_bytes,
        )

    def step_s(self, rows: float, kv_tokens: float) -> float:
        """Seconds of a step of that many sequences with one token each. kv_tokens: context of all of them together."""
        work = self.work
        moved = work.read_bytes(tokens=rows, rows=rows, context=kv_tokens)
        flops = work.flops(tokens=rows, heads=rows, context=kv_tokens)
        copies = self.host_weights_bytes / LINK_BYTES_PER_S
        bound = max(moved / self.card.memory_bytes_per_s, flops / self._flops_per_s, copies)
        return bound + STEP_S + LAYER_S * self.shape.layers + ROW_S * rows

    def stream_tokens_per_s(self, longest: int) -> float:
        """Of one sequence alone. longest: tokens that a request may have."""
        return 1 / self.step_s(1, min(STREAM_CONTEXT, longest))

    def batch_tokens_per_s(self, *, rows: int, kv_tokens: int) -> float:
        """Of all sequences together."""
        return rows / self.step_s(rows, kv_tokens)

    def prefill_tokens_per_s(self) -> float:
        """Of long prompts, whose products are bound by multiplying; attention, which grows with them, is left out."""
        return self._flops_per_s / self.work.prefill_flops()

    @property
    def _flops_per_s(self) -> int:
        """Weights in int8 and int4 are multiplied in 16 bits."""
        return (self.card.fp8_flops_per_s if self.quantization == "fp8" else 0) or self.card.flops_per_s
