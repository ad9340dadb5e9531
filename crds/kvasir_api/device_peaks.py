"""What cards can do at best, by the names that their driver gives them: dense products in 16 bits, and memory.

From NVIDIA's data sheets; where those state rates with sparsity, half of them. Read for metrics of utilisation. A card that
is not listed has no utilisation, never a wrong one, and neither has a slice of a card.
"""

from typing import Final

from kvasir_api.roofline import Card

_TERA, _GIGA = 10**12, 10**9
PEAKS: Final = {
    "Tesla T4": (65, 320),
    "Tesla V100-SXM2-16GB": (125, 900),
    "Tesla V100-SXM2-32GB": (125, 900),
    "NVIDIA A10": (125, 600),
    "NVIDIA A30": (165, 933),
    "NVIDIA A40": (150, 696),
    "NVIDIA A100-SXM4-40GB": (312, 1555),
    "NVIDIA A100-PCIE-40GB": (312, 1555),
    "NVIDIA A100-SXM4-80GB": (312, 2039),
    "NVIDIA A100 80GB PCIe": (312, 1935),
    "NVIDIA L4": (121, 300),
    "NVIDIA L40": (181, 864),
    "NVIDIA L40S": (362, 864),
    "NVIDIA H100 80GB HBM3": (989, 3350),
    "NVIDIA H100 PCIe": (756, 2000),
    "NVIDIA H200": (989, 4800),
    "NVIDIA B200": (2250, 8000),
}
"""TFLOP/s and GB/s."""


def peak(device: str, dtype: str) -> Card | None:
    """Of a device by its name, alone or with what follows it in parentheses; None where it is not known.

    dtype: of activations. The numbers do not hold for products in 32 bits.
    """
    found = PEAKS.get(device.partition(" (")[0])
    if found is None or dtype == "float32" or "MIG" in device:
        return None
    tera, giga = found
    return Card(flops_per_s=tera * _TERA, memory_bytes_per_s=giga * _GIGA)
