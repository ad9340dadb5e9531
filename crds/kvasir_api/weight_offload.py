"""Which layers of a model keep their weights in memory of the host (`weightsHostBytes`). Arithmetic on bytes.

The runtime streams them through two buffers of the device in every step; the forecast counts what that leaves there.
"""

from collections.abc import Sequence
from typing import Final

BUFFERS: Final = 2
"""Layers that are on the device at a time: one is computed while the next is copied."""
LEAST_LAYERS: Final = BUFFERS + 1
"""With fewer the buffers would take what the layers do."""
LINK_BYTES_PER_S: Final = 25e9
"""Of a card's link to the host, for a forecast: PCIe 4.0 with 16 lanes gives about that. The runtime measures it."""
NOT_ON_CPU: Final = "weightsHostBytes is for CUDA devices: on a CPU the weights are in the host's memory as they are"


def chosen(layer_bytes: Sequence[int], limit_bytes: int) -> tuple[int, ...]:
    """Indices of as many layers as limit_bytes hold, each behind its share of the others, beside which it is copied.

    None at all where fewer than LEAST_LAYERS fit.
    """
    total = len(layer_bytes)
    for count in range(total, LEAST_LAYERS - 1, -1):
        indices = tuple((number + 1) * total // count - 1 for number in range(count))
        if sum(layer_bytes[index] for index in indices) <= limit_bytes:
            return indices
    return ()
