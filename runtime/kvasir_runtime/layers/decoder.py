"""The forward pass of a decoder, built from its spec and its tensors with the operations of one device.

Called by the runner once a step with the ragged batch of that step. It knows no checkpoint names, no sampling, no rows.
"""

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kvasir_api.cache_groups import LayerAttention
from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.kernels.decoder_step import DecoderParts, DecoderStep, ForwardOutput
from kvasir_runtime.kernels.kv_cache import KvCache
from kvasir_runtime.kernels.linear import Linear, Weight, moved, with_rows
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.layers import feed_forward, gated_delta_net, latent_attention, rotary
from kvasir_runtime.layers.feed_forward import plain
from kvasir_runtime.layers.gated_delta_net import GatedDeltaNet
from kvasir_runtime.layers.latent_attention import LatentAttention
from kvasir_runtime.layers.layer_offload import LayerOffload
from kvasir_runtime.layers.spec import DecoderSpec, RopeSpec

Angles = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The query tokens of one step, sequence after sequence.

    token_ids, positions: (tokens,) int64
    slots: (groups, tokens) int64, where each token's key and value go in the layers of each cache group
    attn_metadata: one for each cache group, of the same lengths
    logit_rows: (rows,) int64 indices of the tokens whose logits are wanted, or None for all of them
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    attn_metadata: tuple[AttentionMetadata, ...]
    logit_rows: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    attention: LayerAttention
    attention_norm: Tensor
    qkv: Linear
    qk_norm: Tensor | None
    state: GatedDeltaNet | None
    latent: LatentAttention | None
    output: Linear
    outer_norm: Tensor | None
    mlp_norm: Tensor
    feed_forward: Callable[[Tensor], Tensor]
    mlp_outer_norm: Tensor | None


class Decoder:
    """A model ready to run: (batch, cache) -> logits."""

    def __init__(
        self,
        spec: DecoderSpec,
        ops: Ops,
        tensors: MutableMapping[str, Weight],
        *,
        num_positions: int,
        offload: LayerOffload | None = None,
    ) -> None:
        """Take the tensors out of the mapping one by one, so that a repacked weight exists twice only for a moment.

        tensors: what `parameter_shapes(spec)` names, on the device and in the dtype to compute in; weights of linear
        layers may be quantized, and a quantized head may be there besides the table that it is a copy of.
        num_positions: longest sequence that will be computed. offload: of the layers whose tensors are on the host.
        self.step is the forward pass as one operation, None where the table has none for these weights.
        """
        self.spec = spec
        self._ops = ops
        table = plain(tensors, "embedding")
        self._angles = _angles(spec.rope, spec.head_dim, num_positions, table)
        self._local_angles = (
            _angles(spec.local_rope, spec.head_dim, num_positions, table) if spec.local_rope else self._angles
        )
        self._embedding_scale = float(torch.tensor(spec.embedding_scale, dtype=table.dtype))  # rounded as trained
        self._offload, device = offload, table.device
        self._layers = tuple(
            self._layer(index, attention, tensors, device) for index, attention in enumerate(spec.attentions)
        )
        self._norm = self._norm_of(tensors, "norm")
        self._head: Linear | None = None
        has_own = False
        if spec.head != "none":
            has_own = spec.head_rows > 0 or "head.weight" in tensors  # a quantized copy of a table that is both
            self._head = ops.linear(tensors.pop("head.weight") if has_own else table, None)
        # A table that is the head as well is kept once, as the head has it, where that gives its rows back.
        shared = with_rows(self._head) if self._head and not has_own else None
        self._embed: Callable[[Tensor], Tensor] = shared.rows if shared else partial(_looked_up, ops, table)
        self.step = self._whole_step(shared or table)
        if tensors:
            raise ValueError(f"tensors without a place in the decoder: {', '.join(sorted(tensors))}")

    def logits_of(self, output: ForwardOutput) -> Tensor:
        """Logits of all rows of an output, as `logits` gives them."""
        return self.logits(output.hidden) if output.logits is None else output.logits

    def greedy_ids_of(self, output: ForwardOutput) -> Tensor:
        """(rows,) int64, the index of each row's largest logit."""
        return self._ops.argmax(self.logits_of(output)) if output.greedy_ids is None else output.greedy_ids

    def logits(self, hidden: Tensor) -> Tensor:
        """(rows, vocab or labels) in the model's dtype, from contiguous rows of `ForwardOutput.hidden`.

        With a cap in float32, since rounding what a cap brought together would make equals of the largest. Raises
        ValueError for a model without a head.
        """
        if self._head is None:
            raise ValueError("the model has no head: it gives hidden states only")
        logits = self._head(hidden)
        cap = self.spec.logit_cap
        return logits.float().div_(cap).tanh_().mul_(cap) if cap and self.spec.head == "vocabulary" else logits

    def profile(self, wanted: bool) -> None:
        """Count, or do not, the time of each kind of operation in `forward`; only the whole step can."""
        if self.step is not None:
            self.step.profile(wanted)

    def profiled(self) -> Mapping[str, int]:
        """Time stamps that each kind of operation took since the last call; empty where they are not counted."""
        return {} if self.step is None else self.step.profiled()

    def begins(self, cache: KvCache) -> bool:
        """Whether `begin` may be called: `forward` is one operation, in which this thread can take part later."""
        return self.step is not None and self.step.takes(cache)

    def begin(self, batch: Batch, cache: KvCache, *, greedy: bool = False) -> None:
        """Start the other threads on `forward` of a batch with logit_rows; `finish` completes it.

        greedy: compute greedy ids too.
        """
        assert self.step is not None
        assert batch.logit_rows is not None
        ids, positions, slots, rows = batch.token_ids, batch.positions, batch.slots, batch.logit_rows
        self.step.begin(ids, positions, slots, rows, batch.attn_metadata, cache, greedy=greedy)

    def finish(self) -> ForwardOutput:
        """`forward` of what was begun."""
        assert self.step is not None
        return self.step.finish()

    def forward(self, batch: Batch, cache: KvCache) -> ForwardOutput:
        """Hidden states of the wanted rows; the keys and values of all tokens are written to the cache.

        As one operation where the table has one for this model and cache, else operation by operation; only the former
        computes logits as well.
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
        slots = batch.slots.unbind(0)
        in_turn = enumerate(self._layers) if self._offload is None else self._offload.in_turn(self._layers)
        for index, layer in in_turn:
            group = cache.groups[index]
            hidden, residual = ops.rms_norm(hidden, residual, layer.attention_norm, spec.norm_eps)
            turned = local if layer.attention.kind == "window" else angles
            projected, attn_metadata = layer.qkv(hidden), batch.attn_metadata[group]
            if layer.state is not None:
                attended = layer.state(projected, cache.layers[index], attn_metadata, cache.block_size)
            elif layer.latent is not None:
                attended = layer.latent(projected, turned, cache.layers[index], slots[group], attn_metadata)
            else:
                attended = self._attend(layer, projected, turned, cache.layers[index], slots[group], attn_metadata)
            if index == spec.num_layers - 1 and batch.logit_rows is not None:
                # Only the wanted rows go on: nothing later reads the others.
                attended = attended.index_select(0, batch.logit_rows)
                residual = residual.index_select(0, batch.logit_rows)
            hidden = self._outer(layer.output(attended), layer.outer_norm)
            hidden, residual = ops.rms_norm(hidden, residual, layer.mlp_norm, spec.norm_eps)
            hidden = self._outer(layer.feed_forward(hidden), layer.mlp_outer_norm)
        hidden, _ = ops.rms_norm(hidden, residual, self._norm, spec.norm_eps)
        return ForwardOutput(hidden=hidden)

    def _whole_step(self, embedding: Tensor | Linear) -> DecoderStep | None:
        spec = self.spec
        if self._ops.decoder_step is None or not spec.usual or self._offload is not None:
            return None
        return self._ops.decoder_step(
            DecoderParts(
                layers=self._layers,
                embedding=embedding,
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

    def _outer(self, x: Tensor, norm: Tensor | None) -> Tensor:
        return x if norm is None else self._ops.rms_norm(x, None, norm, self.spec.norm_eps)[0]

    def _attend(
        self,
        layer: _Layer,
        projected: Tensor,
        angles: Angles,
        cache: Tensor,
        slots: Tensor,
        attn_metadata: AttentionMetadata,
    ) -> Tensor:
        spec, ops = self.spec, self._ops
        heads, kv_heads = spec.num_heads, spec.num_kv_heads
        gate: Tensor | None = None
        if spec.gated_attention:
            first, rest = projected.split((spec.query_rows, 2 * spec.kv_dim), dim=1)
            query, gate = (part.flatten(1) for part in first.view(-1, heads, 2, spec.head_dim).unbind(2))
            projected = torch.cat((query, rest), dim=1)
        qkv = projected.view(-1, heads + 2 * kv_heads, spec.head_dim)
        query = ops.split_qkv(qkv, layer.qk_norm, spec.norm_eps, *angles, cache, slots)
        scale = spec.attention_scale or spec.head_dim**-0.5
        seen = layer.attention
        out = ops.attention(query, cache, attn_metadata, scale, seen.window, spec.attention_cap, None, seen.chunk)
        return out if gate is None else out * gate.sigmoid()

    def _layer(
        self, index: int, attention: LayerAttention, tensors: MutableMapping[str, Weight], device: torch.device
    ) -> _Layer:
        spec, ops, prefix = self.spec, self._ops, f"layers.{index}."
        is_streamed = self._offload is not None and index in self._offload.indices
        if is_streamed:
            for name in [name for name in tensors if name.startswith(prefix)]:
                tensors[name] = moved(tensors[name], device)
        qk_norm = state = latent = None
        if attention.kind == "state" and spec.state is not None:
            state = gated_delta_net.build(prefix, spec.state, ops.gated_delta, tensors, spec.norm_eps)
        elif spec.latent is not None:
            heads, scale = spec.num_heads, spec.attention_scale
            latent = latent_attention.build(prefix, spec.latent, heads, scale, ops, tensors)
        elif spec.qk_norm:
            query, key = (self._norm_of(tensors, prefix + name) for name in ("query_norm", "key_norm"))
            qk_norm = torch.cat((query.expand(spec.num_heads, -1), key.expand(spec.num_kv_heads, -1)))

        def linear(name: str) -> Linear:
            bias = plain(tensors, f"{prefix}{name}.bias") if f"{prefix}{name}.bias" in tensors else None
            return ops.linear(tensors.pop(f"{prefix}{name}.weight"), bias)

        layer = _Layer(
            attention=attention,
            attention_norm=self._norm_of(tensors, prefix + "attention_norm"),
            qkv=linear("qkv"),
            qk_norm=qk_norm,
            state=state,
            latent=latent,
            output=linear("output"),
            outer_norm=self._norm_of(tensors, prefix + "attention_outer_norm") if spec.outer_norms else None,
            mlp_norm=self._norm_of(tensors, prefix + "mlp_norm"),
            feed_forward=feed_forward.build(prefix, spec.experts_of(index), ops, tensors, spec.activation),
            mlp_outer_norm=self._norm_of(tensors, prefix + "mlp_outer_norm") if spec.outer_norms else None,
        )
        return self._offload.added(index, layer) if self._offload is not None and is_streamed else layer

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
