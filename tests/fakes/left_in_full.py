"""Puts modules of a quantized checkpoint back as they were, as tools leave those that they are told to leave.

Like `checkpoints` it must not import our packages.
"""

import json
import re
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from fakes import checkpoints


def apart(folder: Path) -> None:
    """Move what quantization_config says into a file of its own, as earlier versions of ModelOpt write it."""
    config = json.loads((folder / "config.json").read_text())
    stated = config.pop("quantization_config")
    kept = {"kv_cache_quant_algo": "FP8"} | {name: one for name, one in stated.items() if name != "quant_method"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "hf_quant_config.json").write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": kept}))


def restore(folder: Path, full: dict[str, Tensor], modules: str, described: dict[str, Any]) -> None:
    """full: the tensors before. modules: an expression that finds the names of those. described: of the fields of
    quantization_config, those that name them.
    """
    stored = load_file(folder / "model.safetensors")
    left = {name: tensor for name, tensor in full.items() if name.endswith("proj.weight") and re.search(modules, name)}
    stems = tuple(name.removesuffix("weight") for name in left)
    kept = {name: tensor for name, tensor in stored.items() if not name.startswith(stems)}
    (folder / "model.safetensors").unlink()
    checkpoints.write_weights(folder, kept | left)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] |= described
    (folder / "config.json").write_text(json.dumps(config))
