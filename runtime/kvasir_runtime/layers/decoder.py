"""The forward pass of a decoder, built from its spec and its tensors with the operations of one device.

Called by the runner once a step with the ragged batch of that step. It knows no checkpoint names, no sampling, no rows.
"""

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.kernels.cpu import step
from kvasir_runtime.kernels.linear import Linear, Weight, with_rows
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.layers import feed_forward, rotary
from kvasir_runtime.layers.feed_forward import plain
from kvasir_runtime.layers.spec import DecoderSpec, RopeSpec

Angles = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The query tokens of one step, sequence after sequence.

    token_ids, positions: (tokens,) int64; slots: (tokens,) int64, where each token's key and value go
    logit_rows: (rows,) int64 indices of the tokens whose logits are wanted, or None for all of them
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    attn_metadata: AttentionMetadata
    logit_rows: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    window: int
    attention_norm: Tensor
    qkv: Linear
    qk_norm: Tensor | None
    output: Linear
    outer_norm: Tensor | None
    mlp_norm: Tensor
    feed_forward: Callable[[Tensor], Tensor]
    mlp_outer_norm: Tensor | None


class Decoder:
    """A model ready to run: (batch, cache) -> logits."""

    def __init__(
        self, spec: DecoderSpec, ops: Ops, tensors: MutableMapping[str, Weight], *, num_positions: int
    ) -> None:
        """Take the tensors out of the mapping one by one, so that a repacked weight exists twice only for a moment.

        tensors: what `parameter_shapes(spec)` names, on the device and in the dtype to compute in; weights of linear
        layers may be quantized, and a quantized head may be there besides the table that it is a copy of.
        num_positions: longest sequence that will be computed.
        self.step is the forward pass in one call, None where there is none for this device and these weights.
        """
        self.spec = spec
        self._ops = ops
        table = plain(tensors, "embedding")
        self._angles = _angles(spec.rope, spec.head_dim, num_positions, table)
        self._local_angles = (
            _angles(spec.local_rope, spec.head_dim, num_positions, table) if spec.local_rope else self._angles
        )
        self._embedding_scale = float(torch.tensor(spec.embedding_scale, dtype=table.dtype))  # rounded as trained
        self._layers = tuple(self._layer(index, window, tensors) for index, window in enumerate(spec.windows))
        self._norm = self._norm_of(tensors, "norm")
        self._foreseen: step.Foreseen | None = None
        self._head: Linear | None = None
        has_own = False
        if spec.head != "none":
            has_own = spec.head_rows > 0 or "head.weight" in tensors  # a quantized copy of a table that is both
            self._head = ops.linear(tensors.pop("head.weight") if has_own else table, None)
        # A table that is the head as well is kept once, as the head has it, where that gives its rows back.
        shared = with_rows(self._head) if self._head and not has_own else None
        self._embed: Callable[[Tensor], Tensor] = shared.rows if shared else partial(_looked_up, ops, table)
        self.step = (
            None
            if not spec.usual
            else step.whole(
                self._layers,
                embedding=shared or table,
                head=self._head,
                norm=self._norm,
                cos=self._angles[0],
                sin=self._angles[1],
                heads=spec.num_heads,
                kv_heads=spec.num_kv_heads,
                head_dim=spec.head_dim,
                intermediate=spec.intermediate_size,
                eps=spec.norm_eps,
            )
        )
        if tensors:
            raise ValueError(f"tensors without a place in the decoder: {', '.join(sorted(tensors))}")

    def forward(self, batch: Batch, cache: Tensor) -> Tensor:
        """Logits of the wanted rows: `logits` of `hidden`."""
        return self.logits(self.hidden(batch, cache))

    def logits(self, hidden: Tensor) -> Tensor:
        """(rows, vocab or labels) in the model's dtype, from contiguous rows of what `hidden` returned.

        With a cap in float32, since rounding what a cap brought together would make equals of the largest. Raises
        ValueError for a model without a head.
        """
        if self._head is None:
            raise ValueError("the model has no head: it gives hidden states only")
        logits = self._headed(hidden)
        cap = self.spec.logit_cap
        return logits.float().div_(cap).tanh_().mul_(cap) if cap and self.spec.head == "vocabulary" else logits

    def _headed(self, hidden: Tensor) -> Tensor:
        """What the head gives. Of the first rows of the last `hidden` that is known, if its one call computed it."""
        assert self._head is not None
        foreseen = self._seen(hidden)
        return self._head(hidden) if foreseen is None or foreseen.logits is None else foreseen.logits[: len(hidden)]

    def likeliest(self, hidden: Tensor) -> Tensor:
        """(rows,) int64, where `logits` of these rows are largest."""
        foreseen = self._seen(hidden)
        if foreseen is None or foreseen.likeliest is None or self.spec.logit_cap:
            return self._ops.argmax(self.logits(hidden))
        return foreseen.likeliest[: len(hidden)]

    def _seen(self, hidden: Tensor) -> step.Foreseen | None:
        """What else is known of these rows, if they are the first of the last that one call computed."""
        foreseen = self._foreseen
        return foreseen if foreseen is not None and foreseen.hidden.data_ptr() == hidden.data_ptr() else None

    def count(self, wanted: bool) -> None:
        """Count, or do not, what the time of `hidden` goes into; only the one call of C++ can."""
        if self.step is not None:
            self.step.count(wanted)

    def counted(self) -> Mapping[str, int]:
        """Time stamps that each kind of operation took in the last `hidden`; nothing where they are not counted."""
        return {} if self.step is None else self.step.counted()

    def begins(self, cache: Tensor) -> bool:
        """Whether `begin` may be called: `hidden` is one call of C++, in which threads can take part later."""
        return self.step is not None and self.step.takes(cache)

    def begin(self, batch: Batch, cache: Tensor, *, greedy: bool = False) -> None:
        """Let other threads begin with `hidden` of a batch with logit_rows, which `finish` gives.

        greedy: `likeliest` will be asked of it.
        """
        assert self.step is not None
        assert batch.logit_rows is not None
        ids, positions, slots, rows = batch.token_ids, batch.positions, batch.slots, batch.logit_rows
        self.step.begin(ids, positions, slots, rows, batch.attn_metadata, cache, greedy=greedy)

    def finish(self) -> Tensor:
        """`hidden` of what was begun."""
        assert self.step is not None
        self._foreseen = self.step.finish()
        return self._foreseen.hidden

    def hidden(self, batch: Batch, cache: Tensor) -> Tensor:
        """What the head sees of the wanted rows, and the keys and values of all tokens written to the cache.

        cache: (layers, 2, num_blocks, block_size, kv_heads, head_dim). Returns (rows, hidden_size). In one call where
        the C++ has kernels for all of it, else operation by operation.
        """
        spec, ops = self.spec, self._ops
        if batch.logit_rows is not None and self.begins(cache):
            self.begin(batch, cache)
            return self.finish()
        hidden = self._embed(batch.token_ids)
        if self._embedding_scale != 1:
            hidden = hidden * self._embedding_scale
        angles = _of_positions(self._angles, batch.positions)
        local = _of_positions(self._local_angles, batch.positions) if spec.local_rope else angles
        residual: Tensor | None = None
        for index, layer in enumerate(self._layers):
            hidden, residual = ops.rms_norm(hidden, residual, layer.attention_norm, spec.norm_eps)
            attended = self._attend(layer, hidden, local if layer.window else angles, batch, cache[index])
            if index == spec.num_layers - 1 and batch.logit_rows is not None:
                # Only the wanted rows go on: nothing later reads the others.
                attended = attended.index_select(0, batch.logit_rows)
                residual = residual.index_select(0, batch.logit_rows)
            hidden = self._outer(layer.output(attended), layer.outer_norm)
            hidden, residual = ops.rms_norm(hidden, residual, layer.mlp_norm, spec.norm_eps)
            hidden = self._outer(layer.feed_forward(hidden), layer.mlp_outer_norm)
        hidden, _ = ops.rms_norm(hidden, residual, self._norm, spec.norm_eps)
        return hidden

    def _outer(self, x: Tensor, norm: Tensor | None) -> Tensor:
        return x if norm is None else self._ops.rms_norm(x, None, norm, self.spec.norm_eps)[0]

    def _attend(self, layer: _Layer, hidden: Tensor, angles: Angles, batch: Batch, cache: Tensor) -> Tensor:
        spec, ops = self.spec, self._ops
        heads, kv_heads = spec.num_heads, spec.num_kv_heads
        qkv = layer.qkv(hidden).view(-1, heads + 2 * kv_heads, spec.head_dim)
        query = ops.split_qkv(qkv, layer.qk_norm, spec.norm_eps, *angles, cache, batch.slots)
        scale = spec.attention_scale or spec.head_dim**-0.5
        return ops.attention(query, cache, batch.attn_metadata, scale, layer.window, spec.attention_cap)

    def _layer(self, index: int, window: int, tensors: MutableMapping[str, Weight]) -> _Layer:
        spec, ops, prefix = self.spec, self._ops, f"layers.{index}."
        qk_norm = None
        if spec.qk_norm:
            query, key = (self._norm_of(tensors, prefix + name) for name in ("query_norm", "key_norm"))
            qk_norm = torch.cat((query.expand(spec.num_heads, -1), key.expand(spec.num_kv_heads, -1)))

        def linear(name: str) -> Linear:
            bias = plain(tensors, f"{prefix}{name}.bias") if f"{prefix}{name}.bias" in tensors else None
            return ops.linear(tensors.pop(f"{prefix}{name}.weight"), bias)

        return _Layer(
            window=window,
            attention_norm=self._norm_of(tensors, prefix + "attention_norm"),
            qkv=linear("qkv"),
            qk_norm=qk_norm,
            output=linear("output"),
            outer_norm=self._norm_of(tensors, prefix + "attention_outer_norm") if spec.outer_norms else None,
            mlp_norm=self._norm_of(tensors, prefix + "mlp_norm"),
            feed_forward=feed_forward.build(prefix, spec.experts_of(index), ops, tensors, spec.activation),
            mlp_outer_norm=self._norm_of(tensors, prefix + "mlp_outer_norm") if spec.outer_norms else None,
        )

    def _norm_of(self, tensors: MutableMapping[str, Weight], name: str) -> Tensor:
        """In float32 where 1 was taken away: near 1 the numbers of 16 bits lie further apart than near 0."""
        stored = plain(tensors, name)
        return 1 + stored.float() if self.spec.norms_less_one else stored


def _angles(rope: RopeSpec, head_dim: int, num_positions: int, like: Tensor) -> Angles:
    """cos and sin of all positions, each (positions, head_dim)."""
    cos, sin = rotary.tables(rope, head_dim, num_positions, like.dtype)
    return cos.to(like.device), sin.to(like.device)


def _of_positions(angles: Angles, positions: Tensor) -> Angles:
    """As `kernels.rope` takes them: each (tokens, 1, head_dim)."""
    cos, sin = angles
    return cos.index_select(0, positions).unsqueeze(1), sin.index_select(0, positions).unsqueeze(1)


def _looked_up(ops: Ops, table: Tensor, ids: Tensor) -> Tensor:
    return ops.embedding(ids, table)
