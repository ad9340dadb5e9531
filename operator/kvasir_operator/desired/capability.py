"""What devices of a class cannot compute, by the capability that the administrator declared.

Called when a class is chosen. Only declared values count: a class without a capability is never rejected here, and the
runtime checks again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kvasir_api.accelerator import AcceleratorClassSpec
from kvasir_api.forecast import BFLOAT16
from kvasir_api.inspection import ModelFacts, dtype_of
from kvasir_api.options import RuntimeOptions

Capability = tuple[int, int]
FP8: Final = (8, 9)
"""From Ada and Hopper on there are products and conversions of e4m3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingCapability:
    """field: path of what the spec requests. why: a sentence about the class."""

    field: str
    why: str


def missing_capability(
    runtime: RuntimeOptions, facts: ModelFacts | None, accelerator: AcceleratorClassSpec
) -> MissingCapability | None:
    """The first thing that the spec requests and devices of the class cannot do. facts: None while unknown."""
    if not accelerator.compute.capability:
        return None
    has = _parsed(accelerator.compute.capability)
    for field, what, needed, instead in _needs(runtime, facts, has):
        if has < needed:
            said = f"{what} needs compute capability {needed[0]}.{needed[1]}, it has {accelerator.compute.capability}"
            return MissingCapability(field=f"spec.runtime.{field}", why=f"{said}; {instead}")
    return None


def _needs(
    runtime: RuntimeOptions, facts: ModelFacts | None, has: Capability
) -> Iterator[tuple[str, str, Capability, str]]:
    """Field, what it requests, the capability for that, and what could be asked for instead."""
    if runtime.quantization == "fp8":
        yield "quantization", "fp8", FP8, "int8 takes as little memory"
    if runtime.kv_cache_dtype == "fp8":
        yield "kvCacheDtype", "fp8", FP8, "int8 takes as little memory"
    dtype = dtype_of(facts, runtime, "cuda", has) if facts else runtime.dtype
    if dtype == "bfloat16":
        yield "dtype", "bfloat16" if runtime.dtype == dtype else "the model's bfloat16", BFLOAT16, "float16 is for it"


def _parsed(text: str) -> Capability:
    major, _, minor = text.partition(".")
    return int(major), int(minor)
