"""How much memory the weights of a GGUF file take as the runtime holds them, for forecasts. Pure but for the file."""

import re
from collections import defaultdict
from typing import Any, Final

from kvasir_runtime.gguf.hf_config import config
from kvasir_runtime.gguf.reader import GgufFile, TensorEntry

_SIXTEENTHS: Final = {"F32": 64, "F16": 32, "BF16": 32, "Q4_0": 10, "Q4_1": 10, "Q4_K": 12}
"""Of a byte for a number: plain ones, and those that stay in 4 bits with scales for 32 columns, which of Q4_K are
float32. All others are held in 8 bits."""
_EIGHT_BITS: Final = 17
_PLAIN: Final = ("F32", "F16", "BF16")
_MATRIX: Final = re.compile(r"(blk\.\d+\.)(.+)\.weight")
_ROUTERS: Final = ("ffn_gate_inp", "ffn_gate_inp_shexp")
_TOGETHER: Final = re.compile(r"attn_[qkv]|ffn_(?:gate|up)(_exps|_shexp)?")
"""What is computed in one product is held in one format."""


def config_with_bits(file: GgufFile) -> dict[str, Any]:
    """`config` with a quantization_config, by which a forecast counts the weights; without one where none is packed.

    Raises ModelError as `config` does.
    """
    document, size = config(file), _sixteenths(file)
    return document | ({"quantization_config": {"quant_method": "gguf", "sixteenths": size}} if size else {})


def _sixteenths(file: GgufFile) -> int:
    """Of a byte, for each number of the layers' matrices, rounded up; 0 where all are plain.

    A head in few bits counts by what it takes less than in 16 bits, a copy of the table for it by all that it takes.
    """
    products = defaultdict[str, list[TensorEntry]](list)
    for name, entry in file.tensors.items():
        matrix = _MATRIX.fullmatch(name)
        if matrix is None or matrix[2] in _ROUTERS or len(entry.shape) < 2:
            continue
        shared = _TOGETHER.fullmatch(matrix[2])
        products[matrix[1] + (f"{matrix[2][:4]}{shared[1] or ''}" if shared else matrix[2])].append(entry)
    held = [(entry, _held(parts)) for parts in products.values() for entry in parts]
    if all(entry.kind.name in _PLAIN for entry, _ in held):
        return 0
    total = sum(_elements(entry) * size for entry, size in held)
    head, table = file.tensors.get("output.weight"), file.tensors.get("token_embd.weight")
    if head is not None and head.kind.name not in _PLAIN:
        total -= _elements(head) * (_SIXTEENTHS["BF16"] - _held([head]))
    elif head is None and table is not None and table.kind.name not in _PLAIN:
        total += _elements(table) * _held([table])
    return max(1, -(-total // sum(_elements(entry) for entry, _ in held)))


def _held(parts: list[TensorEntry]) -> int:
    """Sixteenths of a byte for a number of tensors that are held in one format."""
    kinds = {entry.kind.name for entry in parts}
    if plain := kinds & {*_PLAIN}:
        return max(_SIXTEENTHS[kind] for kind in plain)
    return _SIXTEENTHS.get(kinds.pop(), _EIGHT_BITS) if len(kinds) == 1 else _EIGHT_BITS


def _elements(entry: TensorEntry) -> int:
    return entry.num_bytes // entry.kind.num_bytes * entry.kind.block
