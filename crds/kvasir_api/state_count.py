"""Whole numbers of the `/state` document, with the bound that a reader checks while it reads. Used by its parts."""

from typing import Annotated

import msgspec

MAX_COUNT = (1 << 63) - 1
Count = Annotated[int, msgspec.Meta(ge=-MAX_COUNT, le=MAX_COUNT)]
"""Of a size that arithmetic with floats can hold; beyond it a document is no reading."""
