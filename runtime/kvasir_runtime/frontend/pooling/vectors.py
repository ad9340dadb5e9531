"""What is made of the engine's vectors: shortened, normalised, compared, written as base64. Pure.

Vectors are numpy arrays of float32; arithmetic on them is in float64, so that lengths of 1 are 1. numpy is imported by
the first: it is 12 MiB, and most servers answer with text only.
"""

import base64
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float32]
else:
    Vector = Any


def read(pooled: bytes) -> Vector:
    """The vector of an event, all of whose numbers are finite."""
    import numpy as np

    return np.frombuffer(pooled, "<f4")


def embedding(vector: Vector, *, dimensions: int | None, normalize: bool) -> Vector:
    """The first so many numbers (all for None), scaled to length 1 where wanted; a vector of zeros stays."""
    import numpy as np

    shortened = vector[:dimensions].astype(np.float64)
    length = float(np.sqrt(shortened @ shortened)) if normalize else 1.0
    return (shortened / (length or 1.0)).astype(np.float32)


def similarity(one: Vector, other: Vector) -> float:
    """The cosine of the angle between two vectors, -1..1; 0 where one of them is zero."""
    import numpy as np

    first, second = one.astype(np.float64), other.astype(np.float64)
    lengths = math.sqrt(float(first @ first) * float(second @ second))
    return float(first @ second) / lengths if lengths else 0.0


def sigmoid(logit: float) -> float:
    """1 / (1 + exp(-logit)), without overflow."""
    return 1 / (1 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1 + math.exp(logit))


def as_base64(vector: Vector) -> str:
    """Little-endian float32, as OpenAI's clients read it."""
    return base64.b64encode(vector.astype("<f4", copy=False).tobytes()).decode()
