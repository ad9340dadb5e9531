"""A decoder's forward pass as one operation, for backends that compute it in one call.

`Ops.decoder_step` builds it once from the parts of a decoder; `layers.decoder` then calls it every step. A backend
without such an operation has None in its table, and the builder returns None for parts that its kernels do not take:
the decoder then computes operation by operation. The call is split in two: `begin` starts the backend's other threads
and `finish` takes part in the work, so that the caller may do something else in between.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kvasir_api.cache_groups import LayerAttention
from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.kernels.kv_cache import KvCache
from kvasir_runtime.kernels.linear import Linear
from kvasir_runtime.kernels.logprobs import WantedLogprobs
from kvasir_runtime.kernels.row_sampler import LateMask, RowChunk, RowSampler


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardOutput:
    """What a forward pass computed for the wanted rows.

    hidden: (rows, hidden_size), the input of the head. logits: (rows, outputs of the head); greedy_ids: (rows,) int64,
    as `kernels.argmax` gives them. before_norm: (rows, hidden_size), what the last norm read. features: (tokens, width)
    of all tokens, the hidden states that `Decoder.keep` names. All four are None where the pass did not compute them.
    """

    hidden: Tensor
    logits: Tensor | None = None
    greedy_ids: Tensor | None = None
    before_norm: Tensor | None = None
    features: Tensor | None = None

    def first(self, count: int) -> "ForwardOutput":
        """The same of the first rows."""
        return ForwardOutput(
            hidden=self.hidden[:count],
            logits=None if self.logits is None else self.logits[:count],
            greedy_ids=None if self.greedy_ids is None else self.greedy_ids[:count],
        )


class LayerParts(Protocol):
    """Tensors and operations of one layer."""

    @property
    def attention(self) -> LayerAttention: ...
    @property
    def attention_norm(self) -> Tensor: ...
    @property
    def qk_norm(self) -> Tensor | None: ...
    @property
    def outer_norm(self) -> Tensor | None: ...
    @property
    def mlp_norm(self) -> Tensor: ...
    @property
    def mlp_outer_norm(self) -> Tensor | None: ...
    @property
    def is_local(self) -> bool: ...
    @property
    def qkv(self) -> Linear: ...
    @property
    def output(self) -> Linear: ...
    @property
    def feed_forward(self) -> Callable[[Tensor], Tensor]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderParts:
    """A decoder of the usual shape (`DecoderSpec.usual`).

    embedding: the table, or the head where that returns rows of its weight. head: of any kind, or None.
    norm: of the last layer's output. angles, local_angles: cosines and sines, (positions, head_dim) each, the latter of
    local layers. eps: of all norms. Scales and caps are those of `DecoderSpec`, but that
    attention_scale is given; embedding_scale is rounded to the model's type.
    """

    layers: Sequence[LayerParts]
    embedding: Tensor | Linear
    head: Linear | None
    norm: Tensor
    angles: tuple[Tensor, Tensor]
    local_angles: tuple[Tensor, Tensor]
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    attention_scale: float
    attention_cap: float
    embedding_scale: float
    residual_scale: float
    logit_scale: float
    logit_cap: float


@dataclass(frozen=True, slots=True)
class SampledRows:
    """ids: (samples,) int64 as `kernels.sample` gives them, in the rows by now. logprobs: as `Ops.logprobs` gives what
    was wanted of them, None for nothing. The next step overwrites ids.
    """

    ids: Tensor
    logprobs: Tensor | None


class RowSteps(Protocol):
    """Steps whose inputs are made from rows of known ids, and whose sampled ids are appended to them."""

    def begin(
        self,
        chunks: Sequence[RowChunk],
        cache: KvCache,
        *,
        greedy: bool,
        masks: Mapping[int, LateMask] | None = None,
        logprobs: WantedLogprobs | None = None,
    ) -> bool:
        """Start a step of these chunks.

        greedy: all take the largest logit, whatever their rows say. masks: of grammars, by index among the positions
        that are sampled from; not with greedy. logprobs: what is wanted of these. False where the step is too large. A
        step that was begun and not finished is lost.
        """
        ...

    def finish(self) -> SampledRows | ForwardOutput:
        """Complete the step. What was computed where a mask was late: nothing was sampled then, and the next step
        overwrites it.
        """
        ...


class DecoderStep(Protocol):
    """The forward pass of one decoder."""

    def takes(self, cache: KvCache) -> bool:
        """Whether it reads and writes a cache of this type."""
        ...

    def begin(
        self,
        token_ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        rows: Tensor,
        attn_metadata: Sequence[AttentionMetadata],
        cache: KvCache,
        *,
        greedy: bool = False,
    ) -> None:
        """Start a step; ids are int64 and contiguous. rows: indices of the tokens whose output is wanted.

        slots: (groups, tokens), attn_metadata: one for each cache group.
        greedy: compute greedy ids too. A step that was begun and not finished is lost.
        """
        ...

    def finish(self) -> ForwardOutput:
        """Complete the step. Raises ValueError where none was begun."""
        ...

    def row_steps(self, tables: NDArray[np.int64], sampler: RowSampler, max_tokens: int) -> RowSteps | None:
        """Steps over the rows of a sampler of the same table, or None where the step does not compute logits itself.

        tables: (groups, rows, blocks), which stay where they are. max_tokens: of a step.
        """
        ...

    def profile(self, wanted: bool) -> None:
        """Count, or do not, the time of each kind of operation from now on."""
        ...

    def profiled(self) -> Mapping[str, int]:
        """Time stamps by kind since the last call; empty where they are not counted."""
        ...


BuildDecoderStep = Callable[[DecoderParts], DecoderStep | None]
