"""What cards can do at best, by the names that their driver gives them: dense products in 16 bits, memory, and links.

From NVIDIA's data sheets; where those state rates with sparsity, or of both directions, half of them. Read for metrics of
utilisation, and by `kvasir plan`. A card that is not listed has no utilisation, never a wrong one, and neither has a slice
of a card.
"""

from typing import Final, NamedTuple

from kvasir_api.roofline import Card

_TERA, _GIGA = 10**12, 10**9


class DataSheet(NamedTuple):
    """In TFLOP/s, GB/s and GB. link: to any other card of a node, in one direction: NVLink, or PCIe where bridges join
    two cards alone."""

    short: str
    teraflops: int
    memory_rate: int
    memory: int
    link: int

    @property
    def card(self) -> Card:
        """For a roofline."""
        return Card(
            flops_per_s=self.teraflops * _TERA,
            memory_bytes_per_s=self.memory_rate * _GIGA,
            link_bytes_per_s=self.link * _GIGA,
        )

    @property
    def memory_bytes(self) -> int:
        """As stated; drivers report a little more or less."""
        return self.memory * _GIGA


PEAKS: Final = {
    "Tesla T4": DataSheet("T4", 65, 320, 16, 16),
    "Tesla V100-SXM2-16GB": DataSheet("V100-16GB", 125, 900, 16, 150),
    "Tesla V100-SXM2-32GB": DataSheet("V100", 125, 900, 32, 150),
    "NVIDIA A10": DataSheet("A10", 125, 600, 24, 32),
    "NVIDIA A30": DataSheet("A30", 165, 933, 24, 32),
    "NVIDIA A40": DataSheet("A40", 150, 696, 48, 32),
    "NVIDIA A100-SXM4-40GB": DataSheet("A100-40GB", 312, 1555, 40, 300),
    "NVIDIA A100-PCIE-40GB": DataSheet("A100-PCIE-40GB", 312, 1555, 40, 32),
    "NVIDIA A100-SXM4-80GB": DataSheet("A100", 312, 2039, 80, 300),
    "NVIDIA A100 80GB PCIe": DataSheet("A100-PCIE", 312, 1935, 80, 32),
    "NVIDIA L4": DataSheet("L4", 121, 300, 24, 32),
    "NVIDIA L40": DataSheet("L40", 181, 864, 48, 32),
    "NVIDIA L40S": DataSheet("L40S", 362, 864, 48, 32),
    "NVIDIA H100 80GB HBM3": DataSheet("H100", 989, 3350, 80, 450),
    "NVIDIA H100 PCIe": DataSheet("H100-PCIE", 756, 2000, 80, 64),
    "NVIDIA H200": DataSheet("H200", 989, 4800, 141, 450),
    "NVIDIA B200": DataSheet("B200", 2250, 8000, 180, 900),
}
BY_SHORT_NAME: Final = {sheet.short: sheet for sheet in PEAKS.values()}


def peak(device: str, dtype: str) -> Card | None:
    """Of a device by its name, alone or with what follows it in parentheses; None where it is not known.

    dtype: of activations. The numbers do not hold for products in 32 bits.
    """
    found = PEAKS.get(device.partition(" (")[0])
    return None if found is None or dtype == "float32" or "MIG" in device else found.card
