"""What a head is made of that drafts from the hidden states of a decoder, as data. `draft_head` builds from it."""

from dataclasses import dataclass
from typing import Literal

from kvasir_runtime.layers.spec import DecoderSpec, parameter_shapes

DraftHeadKind = Literal["mtp", "eagle3"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftHeadSpec:
    """kind: mtp: the embedding and the hidden state, each behind a norm, go through one projection, whose result the
    layer reads. eagle3: the hidden states of several layers go through one projection first; queries, keys and values
    follow from the result and the embedding, side by side behind norms, and the result is the residual.

    layer: a decoder of one layer. Its head is none where logits are those of the decoder's head, else num_labels are
    the ids that can be drafted. layers: whose hidden states are read, as `Decoder.keep` takes them. feature_size: of
    each. own_embedding: whether there is a table of its own. reads_normed: behind what the decoder has computed it
    reads its own hidden state behind its last norm, else before it.
    """

    kind: DraftHeadKind
    layer: DecoderSpec
    layers: tuple[int, ...]
    feature_size: int
    own_embedding: bool = False
    reads_normed: bool = False

    @property
    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor that a head is built from."""
        hidden, shapes = self.layer.hidden_size, parameter_shapes(self.layer)
        if not self.own_embedding:
            del shapes["embedding"]
        shapes["hidden_norm"] = (hidden,)
        if self.kind == "mtp":
            return shapes | {"embedding_norm": (hidden,), "fuse.weight": (hidden, hidden + self.feature_size)}
        return shapes | {"fuse.weight": (hidden, len(self.layers) * self.feature_size)}
