"""What an encoder has that a decoder has not, as data: tables of positions and types, and a classification head.

Its layers are those of `spec.DecoderSpec`, whose tokens see what comes behind them too. Nothing here makes a tensor.
"""

from dataclasses import dataclass
from typing import Literal

PoolerActivation = Literal["tanh", "relu", "gelu_erf"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSpec:
    """post_norms: a norm is of the sum, and the residual is what it gives (Vaswani et al. 2017); else only what the
    norm of the embeddings gives is, with normed_embeddings. sums_twice: with post_norms, what attention gives is added
    to the residual and normalised, and so is what comes of that, with the same residual.

    positions: rows of a table that is added to embeddings, 0 where heads turn instead; first_position: that of the
    first token. types: rows of a table for the first and the second text of a pair, 0 without. relative_buckets: of
    distances that scores have a bias for, the same in all layers, 0 without. pooler, pooler_bias, pooler_norm: of the
    layer before the labels of a classification head; head_bias: of these.
    """

    post_norms: bool = True
    normed_embeddings: bool = True
    sums_twice: bool = False
    positions: int = 0
    first_position: int = 0
    types: int = 0
    relative_buckets: int = 0
    pooler: PoolerActivation = "tanh"
    pooler_bias: bool = True
    pooler_norm: bool = False
    head_bias: bool = True

    def is_residual(self, layer: int) -> bool:
        """Whether what the norm before a layer gives is the residual too."""
        return self.post_norms or (layer == 0 and self.normed_embeddings)

    def parameter_shapes(
        self, hidden: int, heads: int, num_labels: int, *, norm_bias: bool
    ) -> dict[str, tuple[int, ...]]:
        """Name and shape of its tensors beside those of layers. num_labels: 0 without a classification head."""
        shapes: dict[str, tuple[int, ...]] = {
            "positions": (self.positions, hidden),
            "types": (self.types, hidden),
            "relative_bias": (self.relative_buckets, heads),
        }
        if num_labels:
            shapes |= {
                "pooler.weight": (hidden, hidden),
                "pooler.bias": (hidden * self.pooler_bias,),
                "pooler_norm": (hidden * self.pooler_norm,),
                "pooler_norm.bias": (hidden * self.pooler_norm * norm_bias,),
                "head.bias": (num_labels * self.head_bias,),
            }
        return {name: shape for name, shape in shapes.items() if shape[0]}
