"""Reads Kubernetes quantities such as `250m` and `1Gi`. Pure; used wherever two of them are compared."""

from decimal import Decimal, InvalidOperation
from typing import Final

SUFFIXES: Final = {
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate(("K", "M", "G", "T", "P", "E"), start=1)},
    **{unit: Decimal(1000) ** power for power, unit in enumerate(("k", "M", "G", "T", "P", "E"), start=1)},
    "m": Decimal("0.001"),
    "u": Decimal("0.000001"),
    "n": Decimal("0.000000001"),
    "": Decimal(1),
}


def parse(text: str | float) -> Decimal:
    """The number that a quantity means. ValueError when it is none."""
    text = str(text)
    digits = text.rstrip("KMGTPEikmun")
    suffix = text[len(digits) :]
    try:
        return Decimal(digits) * SUFFIXES[suffix]
    except (InvalidOperation, KeyError):
        raise ValueError(f"{text!r} is not a quantity such as 250m or 1Gi") from None
