"""The query tokens of one step, as a decoder computes them. Made by the runner's rows."""

from dataclasses import dataclass

from torch import Tensor

from kvasir_runtime.kernels.attention_metadata import AttentionMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The query tokens of one step, sequence after sequence.

    token_ids, positions: (tokens,) int64
    slots: (groups, tokens) int64, where each token's key and value go in the layers of each cache group
    attn_metadata: one for each cache group, of the same lengths
    logit_rows: (rows,) int64 indices of the tokens whose logits are wanted, or None for all of them
    token_types: (tokens,) int64, 1 of the second text of a pair; None where all are 0
    embeddings: (tokens, hidden_size) in place of those of token_ids, or None
    beside: of a spec with doubled_input, (tokens, hidden_size) each: what queries, keys and values follow from besides
    normalised embeddings, and the residual in place of embeddings
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    attn_metadata: tuple[AttentionMetadata, ...]
    logit_rows: Tensor | None
    token_types: Tensor | None = None
    embeddings: Tensor | None = None
    beside: tuple[Tensor, Tensor] | None = None
