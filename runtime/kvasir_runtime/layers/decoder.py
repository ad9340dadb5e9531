"""The forward pass of a decoder or an encoder, built from its spec and tensors with the operations of one device.

Called by the runner once a step with the ragged batch of that step. It knows no checkpoint names, no sampling, no rows.
"""

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
from torch import Tensor

from kvasir_api.cache_groups import LayerAttention
from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.kernels.collectives import summed
from kvasir_runtime.kernels.decoder_step import DecoderParts, DecoderStep, ForwardOutput, LayerParts
from kvasir_runtime.kernels.kv_cache import KvCache
from kvasir_runtime.kernels.linear import Linear, Weight, moved, with_rows
from kvasir_runtime.kernels.moe import SparseMoeBlock
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.layers import encoder, feed_forward, latent_attention, norms, rotary, state_layers, vocabulary
from kvasir_runtime.layers.batch import Batch
from kvasir_runtime.layers.expert_copies import ExpertCopies
from kvasir_runtime.layers.feed_forward import plain
from kvasir_runtime.layers.latent_attention import LatentAttention
from kvasir_runtime.layers.layer_offload import LayerOffload
from kvasir_runtime.layers.norms import Norm
from kvasir_runtime.layers.rotary import Angles
from kvasir_runtime.layers.row_exchange import ExchangedExperts, RowExchange
from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.layers.state_layers import StateLayer


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    attention: LayerAttention
    attention_norm: Norm
    qkv: Linear
    is_local: bool
    qk_norm: Tensor | None
    query_scale: Tensor | None
    sinks: Tensor | None
    state: StateLayer | None
    latent: LatentAttention | None
    output: Linear
    outer_norm: Norm
    mlp_norm: Norm
    feed_forward: Callable[[Tensor], Tensor] | None
    mlp_outer_norm: Norm
    scales: tuple[float, float]


class Decoder:
    """A model ready to run: (batch, cache) -> logits. expert_copies: of other ranks' experts, None without."""

    expert_copies: ExpertCopies | None = None

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
        self.exchange: between data-parallel ranks, or None; with it `forward` computes this rank's own sequences.
        self.step is the forward pass as one operation, None where the table has none for these weights. Where spec is
        one rank's part, the ranks of ops.collectives compute together: all call each method in the same order. A stage
        behind the first is given the hidden states before its first layer as embeddings.
        """
        self.spec = spec = replace(spec, temperature=rotary.reached(spec.temperature, num_positions))
        self._ops = ops
        self._group = ops.collectives if spec.rank.count > 1 else None
        self.exchange = RowExchange(self._group) if self._group and spec.rank.is_data else None
        own = "embedding" in tensors  # else embeddings are given, and the table has no rows
        table = plain(tensors, "embedding") if own else norms.any_of(tensors).new_empty(0, spec.hidden_size)
        self.dtype = table.dtype
        self._angles = rotary.angles(spec.rope, spec.head_dim, num_positions, table)
        self._local_angles = (
            rotary.angles(spec.local_rope, spec.head_dim, num_positions, table) if spec.local_rope else self._angles
        )
        self._slopes = torch.tensor(spec.alibi, device=table.device) if spec.alibi else None
        self._embedding_scale = float(torch.tensor(spec.embedding_scale, dtype=table.dtype))  # rounded as trained
        self._offload = offload
        self._alone = norms.read_once(spec)
        self._layers = tuple(self._layer(index, spec.attentions[index], tensors, table) for index in spec.layers)
        self._embedding_norm = norms.taken(tensors, "embedding_norm", spec)
        self._norm = norms.taken(tensors, "norm", spec)
        self._input = None if spec.encoder is None else encoder.build_input(spec.encoder, tensors)
        self._classifier = encoder.build_head(spec, ops, tensors)
        self._head: Linear | None = None
        has_own = False
        if spec.head != "none":
            has_own = spec.head_rows > 0 or "head.weight" in tensors  # a quantized copy of a table that is both
            bias = plain(tensors, "head.bias") if "head.bias" in tensors else None
            self._head = ops.linear(tensors.pop("head.weight") if has_own else table, bias)
        # A table that is the head as well is kept once, as the head has it, where that gives its rows back.
        shared = with_rows(self._head) if self._head and not has_own else None
        embed: Callable[[Tensor], Tensor] = shared.rows if shared else lambda ids: ops.embedding(ids, table)
        self._embed = embed if self._group is None else partial(vocabulary.embedded, embed, spec, self._group)
        self.step = self._whole_step(shared or table) if own else None
        self._kept: tuple[int, ...] = ()
        if tensors:
            raise ValueError(f"tensors without a place in the decoder: {', '.join(sorted(tensors))}")

    @property
    def failure(self) -> str:
        """Why nothing can be computed any more, in one line; "" while it can."""
        return ""

    def keep(self, layers: tuple[int, ...]) -> None:
        """From now on `forward` gives the hidden states that these layers read, in this order, by the number of layers
        what follows the last norm; it is computed operation by operation.
        """
        self._kept, self.step = layers, None

    def embedded(self, token_ids: Tensor) -> Tensor:
        """(tokens, hidden_size): what the first layer reads of ids, (tokens,) int64."""
        hidden = self._embed(token_ids)
        return hidden if self._embedding_scale == 1 else hidden * self._embedding_scale

    def logits_of(self, output: ForwardOutput) -> Tensor:
        """Logits of all rows of an output, as `logits` gives them."""
        return self.logits(output.hidden) if output.logits is None else output.logits

    def greedy_ids_of(self, output: ForwardOutput) -> Tensor:
        """(rows,) int64, the index of each row's largest logit."""
        if output.greedy_ids is not None:
            return output.greedy_ids
        return self.greedy_ids(output.hidden) if output.logits is None else self._ops.argmax(output.logits)

    def greedy_ids(self, hidden: Tensor) -> Tensor:
        """`kernels.argmax` of `logits`. Ranks move the largest logit of each and its id, not logits."""
        logits = self._own_logits(hidden)
        if self._group is None or self.spec.head != "vocabulary":
            return self._ops.argmax(logits)
        return vocabulary.greedy_ids(logits, self.spec, self._group)

    def logits(self, hidden: Tensor) -> Tensor:
        """(rows, vocab or labels) in the model's dtype, from contiguous rows of `ForwardOutput.hidden`.

        With a cap in float32, since rounding what a cap brought together would make equals of the largest. Of several
        ranks the first has them all, another those of its ids. Raises ValueError for a model without a head.
        """
        logits = self._own_logits(hidden)
        if self._group is None or self.spec.head != "vocabulary":
            return logits
        return vocabulary.joined(logits, self.spec, self._group)

    def _own_logits(self, hidden: Tensor) -> Tensor:
        if self._head is None:
            raise ValueError("the model has no head: it gives hidden states only")
        logits = self._head(hidden if self._classifier is None else self._classifier(hidden))
        if self.spec.logit_scale != 1 and self.spec.head == "vocabulary":
            logits = logits * self.spec.logit_scale
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
        """Whether `begin` may be called: others compute `forward`, in which this thread can take part later."""
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
        if batch.logit_rows is not None and self.step is not None and self.step.takes(cache):
            self.begin(batch, cache)
            return self.finish()
        hidden = self.embedded(batch.token_ids) if batch.embeddings is None else batch.embeddings
        if self._input is not None:
            hidden = self._input.embedded(hidden, batch.positions, batch.token_types)
        if self._embedding_norm is not None:
            hidden, _ = norms.normed(ops, hidden, None, self._embedding_norm, spec.norm_eps)
        angles = rotary.of_positions(self._angles, batch.positions)
        local = rotary.of_positions(self._local_angles, batch.positions) if spec.local_rope else angles
        grown = None if spec.temperature is None else rotary.query_scale(spec.temperature, batch.positions)
        residual: Tensor | None = None
        rows, kept, behind = batch.logit_rows, dict[int, Tensor](), spec.num_layers in self._kept
        slots = batch.slots.unbind(0)
        in_turn = enumerate(self._layers) if self._offload is None else self._offload.in_turn(self._layers)
        for index, layer in in_turn:
            group = cache.groups[index]
            if index in self._kept:
                kept[index] = hidden if residual is None else hidden + residual
            if index + spec.layers.start not in spec.joined:
                product = layer.qkv if self._alone else None
                normed, residual = norms.into(product, ops, hidden, residual, layer.attention_norm, spec.norm_eps)
            else:  # what the layer before it reads
                residual = hidden if residual is None else residual + hidden
            if batch.beside is not None:
                normed, residual = torch.cat((normed, batch.beside[0]), dim=1), batch.beside[1]
            if spec.encoder is not None and spec.encoder.is_residual(index):
                residual = normed
            turned, attn_metadata = local if layer.is_local else angles, batch.attn_metadata[group]
            projected = normed if self._alone else layer.qkv(normed)
            if layer.state is not None:
                attended = layer.state(projected, cache.layers[index], attn_metadata, cache.block_size)
            elif layer.latent is not None:
                attended = layer.latent(projected, turned, cache.layers[index], slots[group], attn_metadata)
            elif self._input is not None:
                span, norm = layer.attention.span, layer.qk_norm
                attended = encoder.attend(spec, self._input, ops, projected, norm, turned, attn_metadata, span)
            else:
                growth = layer.query_scale if grown is None or layer.attention.kind == "chunked" else grown
                place = cache.layers[index], slots[group]
                attended = self._attend(layer, projected, turned, *place, attn_metadata, growth)
            if index == len(self._layers) - 1 and rows is not None and not behind:
                # Only the wanted rows go on: nothing later reads the others.
                attended, residual = attended.index_select(0, rows), residual.index_select(0, rows)
                normed = normed.index_select(0, rows) if spec.shared_norm else normed
            hidden, residual = self._through(layer, attended, normed, residual)
        hidden, before_norm = norms.normed(ops, hidden, residual, self._norm, spec.norm_eps)
        if behind:
            kept[spec.num_layers] = hidden
            hidden = hidden if rows is None else hidden.index_select(0, rows)
        features = torch.cat([kept[layer] for layer in self._kept], dim=1) if kept else None
        return ForwardOutput(hidden=hidden, before_norm=before_norm, features=features)

    def _through(self, layer: _Layer, attended: Tensor, normed: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """What a layer adds to the residual last, and the residual before it. normed: what attention read."""
        spec, ops = self.spec, self._ops
        hidden = layer.output(attended)
        if spec.encoder is not None and spec.encoder.sums_twice:
            hidden = norms.normed(ops, hidden, residual, layer.outer_norm, spec.norm_eps)[0]
        else:
            hidden = self._outer(hidden, layer.outer_norm, layer.scales[0])
        if layer.feed_forward is None:
            return hidden, residual
        if spec.parallel:
            if not spec.shared_norm:
                normed, residual = norms.normed(ops, residual, None, layer.mlp_norm, spec.norm_eps)
            return hidden + self._outer(layer.feed_forward(normed), layer.mlp_outer_norm, layer.scales[1]), residual
        twice = spec.encoder is not None and spec.encoder.post_norms  # what is normalised is the residual as well
        product = None if twice else layer.feed_forward
        hidden, residual = norms.into(product, ops, hidden, residual, layer.mlp_norm, spec.norm_eps)
        if twice:
            hidden, residual = layer.feed_forward(hidden), hidden
        return self._outer(hidden, layer.mlp_outer_norm, layer.scales[1]), residual

    def compute_for_others(self, nothing: Tensor) -> None:
        """Take part in a step of which this data-parallel rank has no tokens: in its layers with experts. nothing: (0,
        hidden_size).
        """
        for layer in self._layers:
            if isinstance(layer.feed_forward, SparseMoeBlock):
                layer.feed_forward(nothing)

    def copy_blocks(self, cache: KvCache, sources: Tensor, targets: Tensor) -> None:
        """`kernels.copy_blocks` on a cache of this decoder."""
        self._ops.copy_blocks(cache.blocks, sources, targets)

    def _whole_step(self, embedding: Tensor | Linear) -> DecoderStep | None:
        spec = self.spec
        if self._ops.decoder_step is None or not spec.usual or self._offload is not None:
            return None
        assert isinstance(self._norm, Tensor)
        return self._ops.decoder_step(
            DecoderParts(
                layers=cast(tuple[LayerParts, ...], self._layers),  # whose norms are weights in a usual spec
                embedding=embedding,
                head=self._head,
                norm=self._norm,
                angles=self._angles,
                local_angles=self._local_angles,
                heads=spec.num_heads,
                kv_heads=spec.num_kv_heads,
                head_dim=spec.head_dim,
                eps=spec.norm_eps,
                attention_scale=spec.attention_scale or spec.head_dim**-0.5,
                attention_cap=spec.attention_cap,
                embedding_scale=self._embedding_scale,
                residual_scale=spec.residual_scale,
                logit_scale=spec.logit_scale if spec.head == "vocabulary" else 1,
                logit_cap=spec.logit_cap if spec.head == "vocabulary" else 0,
            )
        )

    def _outer(self, x: Tensor, norm: Norm, scale: float) -> Tensor:
        x = x if norm is None else norms.normed(self._ops, x, None, norm, self.spec.norm_eps)[0]
        return x if scale == 1 else x * scale

    def _attend(
        self,
        layer: _Layer,
        projected: Tensor,
        angles: Angles,
        cache: Tensor,
        slots: Tensor,
        attn_metadata: AttentionMetadata,
        growth: Tensor | None,
    ) -> Tensor:
        spec, ops = self.spec, self._ops
        heads, kv_heads = spec.num_heads, spec.num_kv_heads
        gate: Tensor | None = None
        if spec.qkv_clip:
            projected = projected.clamp(-spec.qkv_clip, spec.qkv_clip)
        if spec.gated_attention:
            first, rest = projected.split((spec.query_rows, 2 * spec.kv_dim), dim=1)
            query, gate = (part.flatten(1) for part in first.view(-1, heads, 2, spec.head_dim).unbind(2))
            projected = torch.cat((query, rest), dim=1)
        qkv = projected.view(-1, heads + 2 * kv_heads, spec.head_dim)
        query = ops.split_qkv(qkv, layer.qk_norm, spec.norm_eps, *angles, cache, slots)
        query = query if growth is None else (query * growth).to(query.dtype)
        scale = spec.attention_scale or spec.head_dim**-0.5
        seen, cap = layer.attention, spec.attention_cap
        out = ops.attention(
            query, cache, attn_metadata, scale, seen.window, cap, layer.sinks, seen.chunk, slopes=self._slopes
        )
        return out if gate is None else out * gate.sigmoid()

    def _layer(
        self, index: int, attention: LayerAttention, tensors: MutableMapping[str, Weight], like: Tensor
    ) -> _Layer:
        spec, ops, prefix = self.spec, self._ops, f"layers.{index}."
        is_streamed = self._offload is not None and index in self._offload.indices
        if is_streamed:
            for name in [name for name in tensors if name.startswith(prefix)]:
                tensors[name] = moved(tensors[name], like.device)
        state = latent = None
        if attention.kind == "state" and spec.state is not None:
            state = state_layers.build(prefix, spec.state, ops.gated_delta, tensors, spec.norm_eps)
        elif spec.latent is not None:
            heads, scale = spec.num_heads, spec.attention_scale
            latent = latent_attention.build(prefix, spec.latent, heads, scale, ops, tensors)

        for name in spec.rank.leaves_out():
            tensors.pop(prefix + name, None)
        group = self._group if self.exchange is None else None

        def linear(name: str) -> Linear:
            bias = plain(tensors, f"{prefix}{name}.bias") if f"{prefix}{name}.bias" in tensors else None
            return ops.linear(tensors.pop(f"{prefix}{name}.weight"), bias)

        def behind() -> Callable[[Tensor], Tensor]:
            experts, gate_scale = spec.experts_of(index), spec.part_scales.gate
            built = feed_forward.build(prefix, experts, ops, tensors, spec.activation, gate_scale)
            if self.exchange is None or not isinstance(built, SparseMoeBlock):
                return built
            is_last = index == spec.num_layers - 1
            exchanged = ExchangedExperts(routed=built.routed, exchange=self.exchange, is_last=is_last)
            return replace(built, routed=exchanged)

        layer = _Layer(
            attention=attention,
            attention_norm=norms.taken(tensors, prefix + "attention_norm", spec),
            qkv=norms.behind_projections(ops, linear("qkv"), tensors, prefix, spec, attention),
            is_local=spec.is_local(index),
            query_scale=norms.of_turned_queries(tensors, prefix, spec),
            qk_norm=norms.of_heads(tensors, prefix, spec, attention, like),
            sinks=plain(tensors, prefix + "sinks").float() if spec.sinks else None,
            state=state,
            latent=latent,
            output=summed(linear("output"), group),
            outer_norm=norms.taken(tensors, prefix + "attention_outer_norm", spec),
            mlp_norm=norms.taken(tensors, prefix + "mlp_norm", spec),
            feed_forward=None if index in spec.bare else summed(behind(), group),
            mlp_outer_norm=norms.taken(tensors, prefix + "mlp_outer_norm", spec),
            scales=spec.scales_of(index),
        )
        return self._offload.added(index, layer) if self._offload is not None and is_streamed else layer
