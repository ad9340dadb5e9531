"""Loads the layers that a checkpoint of sentence-transformers has behind pooling. Called by `build`."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import torch

from kvasir_runtime import sentence_modules
from kvasir_runtime.errors import ModelError
from kvasir_runtime.models.family import whole
from kvasir_runtime.runner.pooling import DENSE_ACTIVATIONS, Dense
from kvasir_runtime.weights.loader import load as load_tensors

Width = Annotated[int, msgspec.Meta(ge=1, le=2**20)]


class _DenseConfig(msgspec.Struct):
    in_features: Width
    out_features: Width
    bias: bool = True
    activation_function: str = "torch.nn.modules.activation.Tanh"
    module_input_name: Literal["sentence_embedding"] = "sentence_embedding"
    module_output_name: Literal["sentence_embedding"] | None = None
    use_residual: Literal[False] = False


def load(model: Path, hidden_size: int, device: torch.device) -> tuple[Dense, ...]:
    """Those of modules.json, in order, in float32; none where it has others that are not served, since `capabilities`
    refuses embeddings then. hidden_size: of what is pooled. Raises ModelError.
    """
    found, width = list[Dense](), hidden_size
    modules = sentence_modules.read(model)
    for module in () if sentence_modules.refusal(modules) else modules:
        if module.name != "Dense":
            continue
        path = model / module.path / "config.json"
        config = sentence_modules.decoded(path, _DenseConfig)
        if config is None:
            raise ModelError(f"{path} does not exist, although modules.json names its folder")
        activation = config.activation_function.rpartition(".")[2]
        if activation not in DENSE_ACTIVATIONS:
            known = " and ".join(DENSE_ACTIVATIONS)
            raise ModelError(f"{path}: activation_function {activation} is not supported; {known} are")
        if config.in_features != width:
            raise ModelError(f"{path}: in_features is {config.in_features}, but {width} numbers come before it")
        width = config.out_features
        shapes: dict[str, tuple[int, ...]] = {"weight": (width, config.in_features)}
        shapes |= {"bias": (width,)} if config.bias else {}
        places = {f"linear.{name}": whole(name, *shape) for name, shape in shapes.items()}
        tensors = load_tensors(path.parent, places, shapes, torch.float32, device, lambda _read, _all: None)
        weight, bias = tensors["weight"], tensors.get("bias")
        assert isinstance(weight, torch.Tensor)
        assert bias is None or isinstance(bias, torch.Tensor)
        found.append(Dense(weight=weight, bias=bias, activation=DENSE_ACTIVATIONS[activation]))
    return tuple(found)
