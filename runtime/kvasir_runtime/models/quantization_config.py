"""Which quantized checkpoints are read, and what their tensors alone do not say.

Called by `config`, with `quantization_config` as it is written: what would be read wrongly is refused, by name. Called
by `weights` for the scheme. What scales a tensor has, and whether any, is seen at the tensor; for forecasts, which see
none, it reads which modules are left in full.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from kvasir_api.stored_bits import modelopt_algorithms

BLOCK: Final = [128, 128]
GPTQ_BITS: Final = (4, 8)
_PACKED: Final = "pack-quantized"
_INTEGERS: Final = ("int-quantized", "naive-quantized", _PACKED)
_E2M1: Final = ("nvfp4-pack-quantized", "mxfp4-pack-quantized")
_MODELOPT: Final = ("NVFP4", "FP8", "FP8_PER_CHANNEL_PER_TOKEN")
_SPARSE: Final = ("dense", "sparse-24-bitmask")
_LEFT: Final = (
    *("modules_to_not_convert", "ignored_layers", "llm_int8_skip_modules", "skip_modules"),
    *("ignore", "exclude_modules"),
)
"""Fields that list modules which are left in full; each tool has its own."""
_PLAIN_NAME: Final = re.compile(r"[\w.-]+")
_FIRST_GPTQ: Final = ("gptq", None)
"""Names of the first layout of GPTQ, which stores zeros less 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationScheme:
    """method: quant_method. zero_offset: what is added to stored zeros. symmetric: zeros are the middle everywhere."""

    method: str = ""
    zero_offset: int = 0
    symmetric: bool = False


def scheme(config: Mapping[str, Any] | None) -> QuantizationScheme:
    """Of a quantization_config that is not refused, or of none."""
    if config is None:
        return QuantizationScheme()
    method = str(config.get("quant_method", ""))
    first = method == "gptq" and config.get("checkpoint_format") in _FIRST_GPTQ
    return QuantizationScheme(method=method, zero_offset=int(first), symmetric=config.get("sym") is True)


def refusal(config: Mapping[str, Any]) -> str:
    """What the checkpoint is that is not read; "" for one that is."""
    method = config.get("quant_method", "unnamed")
    if method == "fp8":
        block = config.get("weight_block_size")
        return "" if block in (None, BLOCK) else f"weights are fp8 in blocks of {block}, expected {BLOCK}"
    if method in ("bitsandbytes", "mxfp4", "hqq"):
        return ""
    if method == "gptq":
        return _gptq(config)
    if method == "awq":
        return _awq(config)
    if method == "compressed-tensors":
        return _compressed(config)
    if method == "modelopt":
        other = [one for one in modelopt_algorithms(config) if one not in _MODELOPT]
        return f"weights are quantized with modelopt to {other[0]}" if other else ""
    return f"weights are quantized with {method}"


def left_in_full(config: Mapping[str, Any]) -> Callable[[str], bool]:
    """Whether a checkpoint leaves the matrix of a module in a floating type, by the module's name in the checkpoint.

    What is no list, no name and no regular expression in the config names nothing. Experts that are one tensor
    (`mxfp4`) are not judged.
    """
    method = str(config.get("quant_method", ""))
    if method == "mxfp4":
        return lambda _: False
    left = [entry for field in _LEFT for entry in _texts(config.get(field))]
    if method == "gptq":
        left += [f"re:{key[2:]}" for key in _texts(config.get("dynamic")) if key.startswith("-:")]
    is_left, only = _named(left, method), _quantized(config, method)
    if only is None:
        return is_left
    is_quantized = _named(only, method)
    return lambda module: is_left(module) or not is_quantized(module)


def _quantized(config: Mapping[str, Any], method: str) -> list[str] | None:
    """Names of the only modules that are quantized; None where all are that the others do not name."""
    if method == "gptq" and isinstance(blocks := config.get("modules_in_block_to_quantize"), list):
        return [name for block in blocks for name in _texts([block] if isinstance(block, str) else block)] or None
    kinds, groups = config.get("quant_config"), config.get("config_groups")
    if method == "hqq" and isinstance(kinds, Mapping) and "weight_quant_params" not in kinds:
        return [kind for kind in _texts(kinds) if kinds[kind] is not None]
    if method == "modelopt":
        return _texts(config.get("quantized_layers")) or None
    if method != "compressed-tensors" or not isinstance(groups, Mapping):
        return None
    found = [one for group in groups.values() if isinstance(group, Mapping) for one in _texts(group.get("targets"))]
    return None if any(one[:1].isupper() for one in found) else found or None  # classes, as Linear


def _texts(given: object) -> list[str]:
    """Names in a list, or the keys of an object."""
    return [one for one in given if isinstance(one, str) and one] if isinstance(given, list | Mapping) else []


def _named(entries: list[str], method: str) -> Callable[[str], bool]:
    """Whether one of these means a module: its name, a part of it, or a pattern.

    Names of checkpoints with images are those of their text part.
    """
    if method == "awq":
        return lambda module: any(entry in module for entry in entries)
    names = {entry.replace("language_model.", "") for entry in entries if _PLAIN_NAME.fullmatch(entry)}
    written = [entry for entry in entries if not _PLAIN_NAME.fullmatch(entry)]
    if method == "modelopt" and written:  # a file may have thousands, each for one module: they are asked at once
        written = ["re:" + "|".join(".*".join(map(re.escape, entry.split("*"))) + r"(?:\.|$)" for entry in written)]
    patterns = [_pattern(entry) for entry in written]
    return lambda module: not names.isdisjoint(_parts(module)) or any(matches(module) for matches in patterns)


def _parts(module: str) -> set[str]:
    """Every run of parts of a name, also without the numbers in it, as HQQ names kinds of modules."""
    whole = module.split(".")
    both = whole, [part for part in whole if not part.isdecimal()]
    return {
        ".".join(parts[first:end])
        for parts in both
        for first in range(len(parts))
        for end in range(first + 1, len(parts) + 1)
    }


def _pattern(entry: str) -> Callable[[str], bool]:
    """Regular expressions match from the beginning of a name where they are marked as such (re:), else from that of a
    part up to the end of one; what is no regular expression has * for anything, as those of modelopt have.

    The config of a stranger may have any, so that both kinds are matched without backtracking; for that reason what
    looks ahead is no regular expression here.
    """
    from jsonschema_rs import Draft202012Validator, RegexOptions

    literal = "".join(f"[{sign}]" if sign in "[?" else sign for sign in entry)

    def has_wildcards(module: str) -> bool:
        return fnmatchcase(module, literal) or fnmatchcase(module, f"{literal}.*")

    written = entry[3:] if entry.startswith("re:") else rf"(?:.*\.)?(?:{entry})(?:\.|$)"
    try:
        return Draft202012Validator({"pattern": f"^(?:{written})"}, pattern_options=RegexOptions()).is_valid
    except ValueError:
        return has_wildcards


def _gptq(config: Mapping[str, Any]) -> str:
    bits, layout = config.get("bits"), config.get("checkpoint_format")
    if bits not in GPTQ_BITS:
        return f"weights are quantized with gptq to {bits} bits, expected 4 or 8"
    if layout not in (*_FIRST_GPTQ, "gptq_v2") or config.get("is_marlin_format"):
        return f"weights are quantized with gptq in the layout {layout or 'marlin'}, expected gptq or gptq_v2"
    return ""


def _awq(config: Mapping[str, Any]) -> str:
    bits, layout = config.get("bits"), str(config.get("version", "gemm")).lower()
    if bits != 4:
        return f"weights are quantized with awq to {bits} bits, expected 4"
    return "" if layout == "gemm" else f"weights are quantized with awq in the layout {layout}, expected gemm"


def _compressed(config: Mapping[str, Any]) -> str:
    groups = config.get("config_groups")
    sparsity = config.get("sparsity_config") or {}
    if not isinstance(sparsity, Mapping):
        return "compressed-tensors whose sparsity_config is no object"
    sparse = sparsity.get("format", "dense")
    if sparse not in _SPARSE:
        return f"weights are sparse ({sparse}) by compressed-tensors"
    if sparse != "dense" and not groups:
        return ""
    if not isinstance(groups, Mapping) or not groups:
        return "compressed-tensors without config_groups"
    for name, group in groups.items():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if not isinstance(weights, Mapping):
            return f"weights of {name} are not described"
        layout = str(group.get("format") or config.get("format") or "")
        if why := _compressed_weights(weights, layout):
            return why
        is_uneven = weights.get("symmetric") is False
        if sparse != "dense" and (weights["num_bits"] != 8 or layout == _PACKED or is_uneven):
            kind = f"{'asymmetric ' if is_uneven else ''}{weights['type']}"
            what = f"{kind} of {weights['num_bits']} bits in the layout {layout or 'unnamed'}"
            return f"weights are sparse ({sparse}) by compressed-tensors and {what}, expected fp8 or symmetric int8"
    return ""


def _compressed_weights(weights: Mapping[str, Any], layout: str) -> str:
    bits, kind, strategy = (weights.get(key) for key in ("num_bits", "type", "strategy"))
    if kind == "int" and bits in (4, 8):
        if layout not in (_INTEGERS if bits == 8 else (_PACKED,)):
            return f"weights are int of {bits} bits in the layout {layout or 'unnamed'} by compressed-tensors"
        return "" if strategy in ("tensor", "channel", "group") else f"weights have scales by {strategy}"
    if (bits, kind) == (4, "float") and layout in _E2M1:
        return ""
    if (bits, kind) != (8, "float"):
        return f"weights are quantized to {kind} of {bits} bits by compressed-tensors"
    block = weights.get("block_structure")
    if strategy not in ("tensor", "channel") and not (strategy == "block" and block in (None, BLOCK)):
        return f"weights are fp8 with scales by {strategy} {block or ''}".rstrip()
    return ""
