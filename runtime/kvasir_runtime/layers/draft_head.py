"""A layer that drafts from the hidden states of a decoder: EAGLE-3's head, or a checkpoint's layer for the token after
the next (MTP).

At a position it reads the hidden state of the decoder there and the token behind it, and gives logits of the token
behind that. Behind what the decoder has computed its own hidden state takes the place of the decoder's. Called by the
runner; it knows no rows and no sampling.
"""

from collections.abc import Callable, MutableMapping
from dataclasses import replace
from functools import partial
from typing import Final

import torch
from torch import Tensor

from kvasir_runtime.kernels.decoder_step import ForwardOutput
from kvasir_runtime.kernels.kv_cache import KvCache
from kvasir_runtime.kernels.linear import Weight
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.layers.batch import Batch
from kvasir_runtime.layers.decoder import Decoder
from kvasir_runtime.layers.draft_head_spec import DraftHeadSpec
from kvasir_runtime.layers.feed_forward import plain
from kvasir_runtime.layers.norms import rms

NO_TOKEN: Final = -1e30
"""Logit of ids that a head does not have; finite, since a row with others counts as invalid."""


class DraftHead:
    """A head ready to run beside the decoder that it drafts for."""

    def __init__(
        self,
        spec: DraftHeadSpec,
        ops: Ops,
        tensors: MutableMapping[str, Weight],
        target: Decoder,
        ids: Tensor | None,
        *,
        num_positions: int,
    ) -> None:
        """tensors: what `parameter_shapes` names, which are taken out. target: what is drafted for; its embeddings, and
        its head, serve where there are none of its own. ids: (num_labels,) int64, which id each logit of the own head
        belongs to. num_positions: longest sequence.
        """
        self.spec = spec.layer
        self._kind, self._ops, self._target, self._ids = spec.kind, ops, target, ids
        self._reads_normed = spec.reads_normed
        self._embedded: Callable[[Tensor], Tensor] = target.embedded
        if spec.own_embedding:
            self._embedded = partial(_rows, ops, plain(tensors, "embedding"))
        self._fuse = ops.linear(tensors.pop("fuse.weight"), None)
        self._hidden_norm = rms(tensors, "hidden_norm", spec.layer)
        self._embedding_norm = rms(tensors, "embedding_norm", spec.layer) if spec.kind == "mtp" else self._hidden_norm
        self._layer = Decoder(spec.layer, ops, tensors, num_positions=num_positions)

    def fused(self, features: Tensor) -> Tensor:
        """(tokens, width of `forward`'s hidden) from the decoder's features, (tokens, their width)."""
        return self._fuse(features) if self._kind == "eagle3" else features

    def forward(self, batch: Batch, hidden: Tensor, cache: KvCache) -> ForwardOutput:
        """Of the wanted rows, hidden states for `logits`, and as `before_norm` what `forward` reads behind them.

        batch: at each position the token behind it. hidden: (tokens, hidden_size), `fused`, or an earlier before_norm.
        """
        embedded, normed = self._embedded(batch.token_ids), self._normed(hidden, self._hidden_norm)
        if self._kind == "eagle3":
            batch = replace(batch, embeddings=embedded, beside=(normed, hidden))
        else:
            both = torch.cat((self._normed(embedded, self._embedding_norm), normed), dim=1)
            batch = replace(batch, embeddings=self._fuse(both))
        output = self._layer.forward(batch, cache)
        return replace(output, before_norm=output.hidden) if self._reads_normed else output

    def logits(self, output: ForwardOutput) -> Tensor:
        """(rows, vocabulary of the decoder)."""
        if self._ids is None:
            return self._target.logits(output.hidden)
        own = self._layer.logits(output.hidden)
        logits = own.new_full((own.shape[0], self._target.spec.vocab_size), NO_TOKEN)
        return logits.index_copy_(1, self._ids, own)

    def _normed(self, x: Tensor, norm: Tensor) -> Tensor:
        return self._ops.rms_norm(x, None, norm, self.spec.norm_eps)[0]


def _rows(ops: Ops, table: Tensor, ids: Tensor) -> Tensor:
    return ops.embedding(ids, table)
