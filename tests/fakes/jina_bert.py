"""JinaBERT made of BERT of transformers, from its paper: Günther et al. 2023 (linear biases in both directions, GEGLU).

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


class Gated(nn.Module):
    """In place of BERT's first product and its activation."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gated_layers = nn.Linear(hidden, 2 * inner, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gated_layers(x).chunk(2, dim=-1)
        given: Tensor = nn.functional.gelu(gate) * up
        return given


class NoPositions(nn.Module):
    """In place of a table of positions."""

    def forward(self, positions: Tensor) -> Tensor:
        return torch.zeros(())


def of(bert: nn.Module) -> nn.Module:
    """The model changed in place, with parameters that are to be filled."""
    base: Any = bert.base_model
    config = base.config
    base.embeddings.position_embeddings = NoPositions()
    for layer in base.encoder.layer:
        layer.intermediate = Gated(config.hidden_size, config.intermediate_size)
    slopes = _get_alibi_slopes(config.num_attention_heads, torch.device("cpu"))

    def with_losses(_: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
        at = torch.arange(args[0].shape[1])
        losses = -slopes[:, None, None] * (at - at[:, None]).abs()
        return args, given | {"attention_mask": losses[None]}

    base.encoder.register_forward_pre_hook(with_losses, with_kwargs=True)
    return bert


def renamed(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Under the names of its checkpoints."""
    found = dict[str, Tensor]()
    for key, weight in weights.items():
        theirs = next((theirs for theirs in NAMES if theirs in key and ".layer." in key), "")
        found[key.replace(theirs, NAMES[theirs]) if theirs else key] = weight
    return found
