"""JinaBERT made of BERT of transformers, from its paper: Günther et al. 2023 (linear biases in both directions, GEGLU).

The kind whose queries and keys have norms is in no paper: it is as text-embeddings-inference computes it (`jina_code`).
The library has no such family, and the code beside its checkpoints is not run. It must not import our packages.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.bloom.modeling_bloom import _get_alibi_slopes

NAMES = {
    "attention.output.": "attention.output.",
    "intermediate.gated_layers.": "mlp.gated_layers.",
    "output.dense.": "mlp.wo.",
    "output.LayerNorm.": "mlp.layernorm.",
}
"""What its checkpoints call what BERT calls otherwise; the first that fits."""
NORMED_NAMES = {
    "attention.output.": "attention.output.",
    "intermediate.gated_layers.": "mlp.up_gated_layer.",
    "output.dense.": "mlp.down_layer.",
    "output.LayerNorm.": "layer_norm_2.",
}
"""The same of those with norms of queries and keys."""


class Gated(nn.Module):
    """In place of BERT's first product and its activation."""

    def __init__(self, hidden: int, inner: int, *, gate_first: bool) -> None:
        super().__init__()
        self.gated_layers, self.gate_first = nn.Linear(hidden, 2 * inner, bias=False), gate_first

    def forward(self, x: Tensor) -> Tensor:
        first, last = self.gated_layers(x).chunk(2, dim=-1)
        gate, up = (first, last) if self.gate_first else (last, first)
        given: Tensor = nn.functional.gelu(gate) * up
        return given


class NoPositions(nn.Module):
    """In place of a table of positions."""

    def forward(self, positions: Tensor) -> Tensor:
        return torch.zeros(())


def of(bert: nn.Module, *, normed: bool = False) -> nn.Module:
    """The model changed in place, with parameters that are to be filled. normed: with norms of queries and keys."""
    base: Any = bert.base_model
    config = base.config
    base.embeddings.position_embeddings = NoPositions()
    for layer in base.encoder.layer:
        layer.intermediate = Gated(config.hidden_size, config.intermediate_size, gate_first=not normed)
        if normed:
            _add_norms(layer, config)
    slopes = _get_alibi_slopes(config.num_attention_heads, torch.device("cpu"))

    def with_losses(_: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
        at = torch.arange(args[0].shape[1])
        losses = -slopes[:, None, None] * (at - at[:, None]).abs()
        return args, given | {"attention_mask": losses[None]}

    base.encoder.register_forward_pre_hook(with_losses, with_kwargs=True)
    return bert


def _add_norms(layer: Any, config: Any) -> None:
    """Of queries and of keys, and one more of the sum behind attention."""
    own = layer.attention.self
    layer.layer_norm_1, own.layer_norm_q, own.layer_norm_k = (
        nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps) for _ in range(3)
    )
    own.query.register_forward_hook(lambda _, __, given: own.layer_norm_q(given))
    own.key.register_forward_hook(lambda _, __, given: own.layer_norm_k(given))

    def summed_again(_: nn.Module, args: tuple[Any, ...], given: tuple[Any, ...]) -> tuple[Any, ...]:
        return layer.layer_norm_1(given[0] + args[0]), *given[1:]

    layer.attention.register_forward_hook(summed_again)


def renamed(weights: dict[str, Tensor], *, normed: bool = False) -> dict[str, Tensor]:
    """Under the names of its checkpoints."""
    found, names = dict[str, Tensor](), NORMED_NAMES if normed else NAMES
    for key, weight in weights.items():
        theirs = next((theirs for theirs in names if theirs in key and ".layer." in key), "")
        found[key.replace(theirs, names[theirs]) if theirs else key] = weight
    return found
