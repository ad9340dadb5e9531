"""What devices of a class cannot compute, by the capability that the administrator declared.

Called by the choice of a class. Only what is declared counts: of a class without a capability nothing is known, and the
runtime has the last word.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kvasir_api.accelerator import AcceleratorClassSpec
from kvasir_api.inspection import dtype_of
from kvasir_operator.desired.fit import facts
from kvasir_operator.observed.service import Observed

Capability = tuple[int, int]
FP8: Final = (8, 9)
"""From Ada and Hopper on there are products and conversions of e4m3."""
BFLOAT16: Final = (8, 0)
"""From Ampere on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingCapability:
    """field: path of what the spec asks for. why: a sentence about the class."""

    field: str
    why: str


def missing_capability(seen: Observed, spec: AcceleratorClassSpec) -> MissingCapability | None:
    """The first thing that the spec asks for and devices of the class cannot do."""
    if not spec.compute.capability:
        return None
    has = _parsed(spec.compute.capability)
    for field, what, needed, instead in _needs(seen):
        if has < needed:
            said = f"{what} needs compute capability {needed[0]}.{needed[1]}, it has {spec.compute.capability}"
            return MissingCapability(field=f"spec.runtime.{field}", why=f"{said}; {instead}")
    return None


def _needs(seen: Observed) -> Iterator[tuple[str, str, Capability, str]]:
    """Field, what it asks for, the capability for that, and what could be asked for instead."""
    wanted = seen.spec.runtime
    if wanted.quantization == "fp8":
        yield "quantization", "fp8", FP8, "int8 takes as little memory"
    if wanted.kv_cache_dtype == "fp8":
        yield "kvCacheDtype", "fp8", FP8, "int8 takes as little memory"
    known = facts(seen)
    dtype = dtype_of(known, wanted, "cuda") if known else wanted.dtype
    if dtype == "bfloat16":
        yield "dtype", "bfloat16" if wanted.dtype == dtype else "the model's bfloat16", BFLOAT16, "float16 is for it"


def _parsed(text: str) -> Capability:
    major, _, minor = text.partition(".")
    return int(major), int(minor)
