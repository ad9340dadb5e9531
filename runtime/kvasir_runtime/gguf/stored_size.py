"""How much memory the weights of a GGUF file take as the runtime holds them, for forecasts. Pure but for the file."""

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from kvasir_api import stored_bits
from kvasir_api.stored_bits import Compute
from kvasir_runtime.gguf.hf_config import config
from kvasir_runtime.gguf.reader import GgufFile, TensorEntry

_SIXTEENTHS: Final = {"F32": 64, "F16": 32, "BF16": 32, "Q4_0": 10, "Q4_1": 10}
"""Of a byte for a number: plain ones, and those that stay in 4 bits with scales for 32 columns. All others but those of
_BY_DEVICE are held in 8 bits."""
_BY_DEVICE: Final[Mapping[Compute, Mapping[str, int]]] = {
    "cuda": {"Q4_K": 12},
    "cpu": {"Q4_K": 10, "IQ4_XS": 9, "IQ4_NL": 9},
}
"""Scales of Q4_K are float32 on cards, which round numbers of IQ4 to 8 bits."""
_INT4: Final = ("Q4_0", "Q4_1", "Q4_K")
"""What `--quantization int4` leaves as it is."""
_EIGHT_BITS: Final = 17
_FOUR_BITS: Final = 10
"""Of what `--quantization int4` quantizes again."""
_PLAIN: Final = ("F32", "F16", "BF16")
_MATRIX: Final = re.compile(r"(blk\.\d+\.)(.+)\.weight")
_ROUTERS: Final = ("ffn_gate_inp", "ffn_gate_inp_shexp")
_TOGETHER: Final = re.compile(r"attn_[qkv]|ffn_(?:gate|up)(_exps|_shexp)?")
"""What is computed in one product is held in one format."""


def config_with_bits(file: GgufFile) -> dict[str, Any]:
    """`config` with a quantization_config, by which a forecast counts the weights; without one where none is packed.

    Raises ModelError as `config` does.
    """
    document, products = config(file), _products(file)
    counts = dict[str, int]()
    for device, own in _BY_DEVICE.items():
        kinds = {**_SIXTEENTHS, **own}
        counts[stored_bits.OF_FILE[device]] = _sixteenths(file, products, kinds)
        counts[stored_bits.INT4_OF_FILE[device]] = _in_four_bits(products, kinds)
    if not counts[stored_bits.OF_FILE["cuda"]]:
        return document
    return document | {"quantization_config": {"quant_method": "gguf", **{k: v for k, v in counts.items() if v}}}


def _products(file: GgufFile) -> list[list[TensorEntry]]:
    """Matrices of the layers, those together that are computed in one product."""
    products = defaultdict[str, list[TensorEntry]](list)
    for name, entry in file.tensors.items():
        matrix = _MATRIX.fullmatch(name)
        if matrix is None or matrix[2] in _ROUTERS or matrix[2].endswith("_norm") or len(entry.shape) < 2:
            continue
        shared = _TOGETHER.fullmatch(matrix[2])
        products[matrix[1] + (f"{matrix[2][:4]}{shared[1] or ''}" if shared else matrix[2])].append(entry)
    return [*products.values()]


def _sixteenths(file: GgufFile, products: list[list[TensorEntry]], kinds: Mapping[str, int]) -> int:
    """Of a byte, for each number of the layers' matrices, rounded up; 0 where all are plain.

    A head in few bits counts by what it takes less than in 16 bits, a copy of the table for it by all that it takes.
    """
    held = [(entry, _held(parts, kinds)) for parts in products for entry in parts]
    if all(entry.kind.name in _PLAIN for entry, _ in held):
        return 0
    total = sum(_elements(entry) * size for entry, size in held)
    head, table = file.tensors.get("output.weight"), file.tensors.get("token_embd.weight")
    if head is not None and head.kind.name not in _PLAIN:
        total -= _elements(head) * (_SIXTEENTHS["BF16"] - _held([head], kinds))
    elif head is None and table is not None and table.kind.name not in _PLAIN:
        total += _elements(table) * _held([table], kinds)
    return max(1, -(-total // sum(_elements(entry) for entry, _ in held)))


def _in_four_bits(products: list[list[TensorEntry]], kinds: Mapping[str, int]) -> int:
    """The same with `--quantization int4`, which leaves those of 4 bits as they are; 0 where there are none."""
    held = [(_held_in_int4(parts, kinds), sum(_elements(entry) for entry in parts)) for parts in products]
    if not any(size for size, _ in held):
        return 0
    total = sum(count * (size or _FOUR_BITS) for size, count in held)
    return -(-total // sum(count for _, count in held))


def _held_in_int4(parts: list[TensorEntry], kinds: Mapping[str, int]) -> int:
    """Sixteenths of a number of matrices that int4 leaves as they are; 0 of others."""
    found = {entry.kind.name for entry in parts}
    return kinds[found.pop()] if len(found) == 1 and found <= {*_INT4} else 0


def _held(parts: list[TensorEntry], kinds: Mapping[str, int]) -> int:
    """Sixteenths of a byte for a number of tensors that are held in one format. kinds: of those not held in 8 bits."""
    found = {entry.kind.name for entry in parts}
    if plain := found & {*_PLAIN}:
        return max(kinds[kind] for kind in plain)
    return kinds.get(found.pop(), _EIGHT_BITS) if len(found) == 1 else _EIGHT_BITS


def _elements(entry: TensorEntry) -> int:
    return entry.num_bytes // entry.kind.num_bytes * entry.kind.block
