"""How much memory the matrices of a checkpoint that is quantized already take, from its quantization_config alone.

Pure, for the forecast; the runtime refuses what it cannot read by itself.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

Compute = Literal["cpu", "cuda"]

GROUPS: Final = (128, 64, 32)
"""Columns that share a scale while they are held: the most of these that divide the file's groups and the rows."""
FOUR_BITS: Final = {"cuda": (10, 10, 12), "cpu": (8.5, 9, 10)}
"""Sixteenths of a byte, by group: 4 bits, a scale and a minimum. Cards have float32 ones, for 64 columns at most."""
EIGHT_BITS: Final = {"cuda": (17, 17, 17), "cpu": (16.25, 16.5, 17)}
"""8 bits and a float16 scale, on cards for 32 columns."""
ROUNDED: Final = 17
"""What no other format holds: 8 bits with a scale for 32 columns, on every device."""
MXFP4, NVFP4 = 8.5, 9
"""4 bits, and a byte for 32 or 16 columns."""
BNB_BLOCK: Final = 64
BNB_4_BITS: Final = 8.5
"""Of bitsandbytes: columns that share a scale, and 4 bits with a float16 one."""
MXFP4_WIDENED: Final = {"cuda": 18, "cpu": 17}
NVFP4_WIDENED: Final = {"cuda": 20, "cpu": 18}
"""In 8 bits with a float32 scale, on processors a float16 one, as `--quantization int8` has them."""
SIXTEEN_BITS: Final = 32
OF_FILE: Final = {"cuda": "sixteenths", "cpu": "cpu_sixteenths"}
INT4_OF_FILE: Final = {"cuda": "int4_sixteenths", "cpu": "cpu_int4_sixteenths"}
"""Counts beside the quant_method `gguf`: of all numbers as they are kept, and with `--quantization int4`."""
MOST: Final = 64
"""Of a number in float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBits:
    """Sixteenths of a byte that a number of a model's matrices takes on a device.

    stored: as the checkpoint has it; 0 where that has them in full. kept: the same with each quantization that leaves some numbers
    as such a checkpoint has them. int8: of a number that is rounded to 8 bits. only_experts: whether numbers outside of
    experts are in 16 bits.
    """

    stored: float = 0
    kept: tuple[tuple[str, float], ...] = ()
    int8: float = ROUNDED
    only_experts: bool = False

    def with_experts(self, fraction: float) -> "HeldBits":
        """Those of a model with another part of its matrices' numbers in experts, 0..1."""
        return replace(self, stored=_of_experts(fraction)) if self.only_experts else self


IN_FULL: Final = HeldBits()


def held(config: object, experts_fraction: float, columns: Iterable[int], device: Compute) -> HeldBits:
    """All of it, by a quantization_config; the arguments are those of `sixteenths`."""
    given = (config, experts_fraction, tuple(columns), device)
    only_experts = isinstance(config, Mapping) and config.get("quant_method") == "mxfp4"
    return HeldBits(
        stored=sixteenths(*given),
        kept=kept(*given),
        int8=own_eight_bits(given[2], device),
        only_experts=only_experts,
    )


def own_eight_bits(columns: Iterable[int], device: Compute) -> float:
    """Sixteenths of a number that is rounded to 8 bits here: processors have groups of 128 columns or of 32."""
    return EIGHT_BITS[device][0 if all(one % GROUPS[0] == 0 for one in columns) else -1]


def sixteenths(
    config: object, experts_fraction: float = 0.0, columns: Iterable[int] = (), device: Compute = "cuda"
) -> float:
    """Of a byte, for each number of the layers' matrices; 0 without a quantization_config, or with one of unknown bits.

    experts_fraction: 0..1 of these numbers that are in experts, which some checkpoints hold in fewer bits than the others.
    columns: of the rows of these matrices. Of those that a checkpoint quantizes: which ones it leaves hangs on their names.
    """
    if not isinstance(config, Mapping):
        return 0
    method = config.get("quant_method")
    if method == "mxfp4":
        return _of_experts(experts_fraction)
    if method == "gguf":
        return _counted(config, OF_FILE[device])
    return max((one.held for one in _each(config, columns, device)), default=0)


def _of_experts(fraction: float) -> int:
    """Where only they are in 4 bits."""
    return math.ceil(MXFP4 * fraction + SIXTEEN_BITS * (1 - fraction))


def kept(
    config: object, experts_fraction: float = 0.0, columns: Iterable[int] = (), device: Compute = "cuda"
) -> tuple[tuple[str, float], ...]:
    """What `sixteenths` is with each `--quantization` that leaves numbers as the checkpoint has them, since they are in
    its bits already: pairs of the option and sixteenths. Any other one quantizes all numbers again.

    experts_fraction, columns, device: as above.
    """
    if not isinstance(config, Mapping):
        return ()
    method, own = config.get("quant_method"), own_eight_bits(columns := tuple(columns), device)
    if method == "mxfp4":
        return (("int8", math.ceil(MXFP4_WIDENED[device] * experts_fraction + own * (1 - experts_fraction))),)
    if method == "gguf":
        four = _counted(config, INT4_OF_FILE[device])
        return (("int4", four),) if four else ()
    each = _each(config, columns, device)
    eight = max((one.in_eight_bits for one in each), default=0)
    found = {
        "fp8": ROUNDED if _has_blocks(config) else 0,
        "int8": eight if eight != own else 0,
        "int4": max((one.held for one in each if one.is_int4), default=0),
    }
    return tuple((option, one) for option, one in found.items() if one)


def modelopt_algorithms(config: Mapping[str, Any]) -> list[object]:
    """What ModelOpt quantizes matrices to: one algorithm, or those of its layers where each has its own."""
    layers = config.get("quantized_layers")
    if config.get("quant_algo") != "MIXED_PRECISION" or not isinstance(layers, Mapping) or not layers:
        return [config.get("quant_algo")]
    return [layer.get("quant_algo") if isinstance(layer, Mapping) else layer for layer in layers.values()]


def _counted(config: Mapping[str, Any], field: str) -> int:
    """From the header of a GGUF file; 0 where a config.json that anything wrote has no integer."""
    count = config.get(field)
    return max(0, min(MOST, count)) if isinstance(count, int) else 0


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


@dataclass(frozen=True, slots=True)
class _Held:
    """held: sixteenths of a number. in_eight_bits: where `--quantization int8` leaves it as it is, else 0."""

    held: float
    in_eight_bits: float = 0
    is_int4: bool = False


def _each(config: Mapping[str, Any], columns: Iterable[int], device: Compute) -> list[_Held]:
    """By each description of a config."""
    rows, method = [one for one in columns if one > 0], config.get("quant_method")
    if method == "bitsandbytes":
        return [_integers(8, None, rows, device) if config.get("load_in_8bit") else _codebook(rows, device)]
    if method == "fp8":
        return [_Held(own_eight_bits(rows, device))]
    if method == "modelopt":
        eight = _Held(own_eight_bits(rows, device))
        return [_nvfp4(device) if one == "NVFP4" else eight for one in modelopt_algorithms(config)]
    if method in ("gptq", "awq"):
        return [_integers(config.get("bits"), config.get("group_size"), rows, device)]
    if method == "hqq":
        return _hqq(config.get("quant_config"), rows, device)
    return [_of_group(group, rows, device) for group in _groups(config)]


def _codebook(rows: list[int], device: Compute) -> _Held:
    """Numbers of 4 bits in blocks of 64; on cards, and of rows that are no whole blocks, rounded to 8 bits."""
    whole = not any(row % BNB_BLOCK for row in rows)
    return _Held(BNB_4_BITS if whole and device == "cpu" else ROUNDED)


def _nvfp4(device: Compute) -> _Held:
    return _Held(NVFP4, NVFP4_WIDENED[device])


def _of_group(group: object, rows: list[int], device: Compute) -> _Held:
    weights: Any = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        return _Held(0)
    if weights.get("type") == "float":
        if weights.get("num_bits") != 4:
            return _Held(own_eight_bits(rows, device))
        return _nvfp4(device) if weights.get("group_size") == 16 else _Held(MXFP4, MXFP4_WIDENED[device])
    return _integers(weights.get("num_bits"), weights.get("group_size"), rows, device)


def _hqq(config: object, rows: list[int], device: Compute) -> list[_Held]:
    """Of one description, or of the kinds of layers that each have one."""
    if not isinstance(config, Mapping):
        return []
    each = [config] if "weight_quant_params" in config else config.values()
    return [_of_lines(one, rows, device) for one in each]


def _of_lines(config: object, rows: list[int], device: Compute) -> _Held:
    """Up to 4 bits are held in 4, where groups are of columns and end with the row."""
    weights: Any = config.get("weight_quant_params") if isinstance(config, Mapping) else None
    bits = weights.get("nbits") if isinstance(weights, Mapping) else None
    if not isinstance(bits, int | float):
        return _Held(0)
    group = weights.get("group_size")
    fits = bits <= 4 and weights.get("axis") == 1 and (group is None or isinstance(group, int))
    return _integers(4, group, rows, device) if fits and not any(row % (group or 1) for row in rows) else _Held(ROUNDED)


def _integers(bits: object, group: object, rows: list[int], device: Compute) -> _Held:
    """group: columns; none and less than 1 are whole rows."""
    if bits not in (4, 8):
        return _Held(0)
    divided = [*rows, group] if isinstance(group, int) and group > 0 else rows
    sizes = zip(GROUPS, (FOUR_BITS if bits == 4 else EIGHT_BITS)[device], strict=True)
    held = next((size for width, size in sizes if not any(one % width for one in divided)), 0)
    return _Held(held, held * (bits == 8), bits == 4) if held else _Held(ROUNDED)
