"""Sizes of heads that draft from a model's hidden states, from a config.json; of one layer each. Called by the forecast's
readers of configs.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from kvasir_api import forecast
from kvasir_api.hf_config import architectures, count, flattened
from kvasir_api.model_shape import ModelShape

_NO_HEAD: Final = {
    "architectures": ["Model"],
    "num_hidden_layers": 1,
    "layer_types": None,
    "full_attention_interval": 1,
    "first_k_dense_replace": 0,
}
_STATES_READ: Final = 3


def is_eagle3(architectures: tuple[str, ...], draft_vocab_size: int | None) -> bool:
    """Whether a config is that of a head of EAGLE-3; some name a decoder and the drafted vocabulary."""
    return draft_vocab_size is not None or any("eagle3" in name.lower() for name in architectures)


def of_eagle3(config: Mapping[str, Any]) -> ModelShape | None:
    """None where the config is of no such head. A table of its own counts, which some share with the model.

    Raises ValueError that names a missing or senseless field.
    """
    if not is_eagle3(architectures(config), config.get("draft_vocab_size")):
        return None
    shape = forecast.shape(flattened(config) | _NO_HEAD)
    hidden, drafted = shape.hidden, count(config, "draft_vocab_size", shape.vocabulary)
    # The projection of what is read, and queries, keys and values from twice as many numbers.
    more = _STATES_READ * hidden**2 + hidden * (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    return _with(shape, matrices=more, others=drafted * hidden)


def of_mtp(config: Mapping[str, Any]) -> ModelShape:
    """Of the layer that predicts the token after the next in a model's own checkpoint, whose tables it shares.

    Raises ValueError as above.
    """
    shape = forecast.shape(flattened(config) | _NO_HEAD)
    return _with(shape, matrices=2 * shape.hidden**2, others=-shape.vocabulary * shape.hidden)


def _with(shape: ModelShape, *, matrices: int, others: int) -> ModelShape:
    """With so many numbers more in matrices and elsewhere."""
    return replace(
        shape,
        parameters=shape.parameters + matrices + others,
        active_parameters=shape.active_parameters + matrices + others,
        kinds=tuple(kind._replace(matrices=kind.matrices + matrices) for kind in shape.kinds),
    )
