"""How much memory the matrices of a checkpoint that is quantized already take, from its quantization_config alone.

Pure, for the forecast; the runtime refuses what it cannot read by itself.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

Compute = Literal["cpu", "cuda"]

FOUR_BITS: Final = 10
"""Sixteenths of a byte: 4 bits, and for 64 columns a float32 scale and minimum."""
FOUR_BITS_BY_32: Final = 12
_WIDTHS: Final = {128: FOUR_BITS, 64: FOUR_BITS, 32: FOUR_BITS_BY_32}
"""Columns that share a scale while they are held: the most that divide the file's groups and the rows."""
EIGHT_BITS: Final = 17
MXFP4: Final = {"cuda": 18, "cpu": 8.5}
"""Held in 8 bits with a float32 scale for 32 columns, or on processors in 4 with a byte."""
NVFP4: Final = {"cuda": 20, "cpu": 9}
"""The same for 16 columns."""
SIXTEEN_BITS: Final = 32
_MOST: Final = 64


def sixteenths(
    config: object, experts_fraction: float = 0.0, columns: Iterable[int] = (), device: Compute = "cuda"
) -> int:
    """Of a byte, for each number of the layers' matrices; 0 without a quantization_config, or with one of unknown bits.

    experts_fraction: 0..1 of these numbers that are in experts, which some checkpoints hold in fewer bits than the others.
    columns: of the rows of these matrices. Of those that a checkpoint quantizes: which ones it leaves hangs on their names.
    device: where they are held.
    """
    if not isinstance(config, Mapping):
        return 0
    method = config.get("quant_method")
    if method == "mxfp4":
        return math.ceil(MXFP4[device] * experts_fraction + SIXTEEN_BITS * (1 - experts_fraction))
    if method == "gguf":
        return _counted(config, "sixteenths")
    return max(_each(config, columns, device), default=0)


def kept(config: object, experts_fraction: float = 0.0, columns: Iterable[int] = ()) -> tuple[tuple[str, int], ...]:
    """What `sixteenths` is with each `--quantization` that leaves numbers as the checkpoint has them, since they are in
    its bits already: pairs of the option and sixteenths. Any other one quantizes all numbers again.

    experts_fraction, columns: as above.
    """
    if not isinstance(config, Mapping):
        return ()
    method = config.get("quant_method")
    if method == "mxfp4":
        return (("int8", math.ceil(MXFP4["cuda"] * experts_fraction + EIGHT_BITS * (1 - experts_fraction))),)
    if method == "gguf":
        four = _counted(config, "int4_sixteenths")
        return (("int4", four),) if four else ()
    each = _each(config, columns, "cuda")  # in 8 bits on every device
    found = {
        "fp8": EIGHT_BITS if _has_blocks(config) else 0,
        "int8": max((one for one in each if one > EIGHT_BITS), default=0),
        "int4": max((one for one in each if 0 < one < EIGHT_BITS), default=0),
    }
    return tuple((option, one) for option, one in found.items() if one)


def _counted(config: Mapping[str, Any], field: str) -> int:
    """From the header of a GGUF file; 0 where a config.json that anything wrote has no integer."""
    count = config.get(field)
    return max(0, min(_MOST, count)) if isinstance(count, int) else 0


def _has_blocks(config: Mapping[str, Any]) -> bool:
    """Whether the scales of e4m3 are those of blocks; those of rows take nearly nothing."""
    weights = [group.get("weights") for group in _groups(config) if isinstance(group, Mapping)]
    return (config.get("quant_method") == "fp8" and bool(config.get("weight_block_size"))) or any(
        isinstance(one, Mapping) and (one.get("type"), one.get("strategy")) == ("float", "block") for one in weights
    )


def _groups(config: Mapping[str, Any]) -> list[object]:
    """Of compressed-tensors."""
    groups = config.get("config_groups")
    is_theirs = config.get("quant_method") == "compressed-tensors"
    return [*groups.values()] if is_theirs and isinstance(groups, Mapping) else []


def _each(config: Mapping[str, Any], columns: Iterable[int], device: Compute) -> list[int]:
    """Sixteenths by each description of a config."""
    rows, method = [one for one in columns if one > 0], config.get("quant_method")
    if method in ("fp8", "bitsandbytes"):
        return [EIGHT_BITS]
    if method == "modelopt":
        return [NVFP4[device] if config.get("quant_algo") == "NVFP4" else EIGHT_BITS]
    if method in ("gptq", "awq"):
        return [_of(config.get("bits"), config.get("group_size"), rows)]
    if method == "hqq":
        return _hqq(config.get("quant_config"), rows)
    return [_of_group(group, rows, device) for group in _groups(config)]


def _of_group(group: object, rows: list[int], device: Compute) -> int:
    weights: Any = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        return 0
    if weights.get("num_bits") == 4 and weights.get("type") == "float":
        return NVFP4[device] if weights.get("group_size") == 16 else math.ceil(MXFP4[device])
    return _of(weights.get("num_bits"), weights.get("group_size"), rows)


def _hqq(config: object, rows: list[int]) -> list[int]:
    """Of one description, or of the kinds of layers that each have one."""
    if not isinstance(config, Mapping):
        return []
    each = [config] if "weight_quant_params" in config else config.values()
    return [_of_lines(one, rows) for one in each]


def _of_lines(config: object, rows: list[int]) -> int:
    """Up to 4 bits are held in 4, where groups are of columns and end with the row."""
    weights: Any = config.get("weight_quant_params") if isinstance(config, Mapping) else None
    bits = weights.get("nbits") if isinstance(weights, Mapping) else None
    if not isinstance(bits, int | float):
        return 0
    group = weights.get("group_size")
    fits = bits <= 4 and weights.get("axis") == 1 and (group is None or isinstance(group, int))
    return _four_bits(group, rows) if fits and not any(row % (group or 1) for row in rows) else EIGHT_BITS


def _of(bits: object, group: object, rows: list[int]) -> int:
    return _four_bits(group, rows) if bits == 4 else EIGHT_BITS if bits == 8 else 0


def _four_bits(group: object, rows: list[int]) -> int:
    """group: columns; none and less than 1 are whole rows."""
    divided = [*rows, group] if isinstance(group, int) and group > 0 else rows
    return next((held for width, held in _WIDTHS.items() if not any(one % width for one in divided)), EIGHT_BITS)
