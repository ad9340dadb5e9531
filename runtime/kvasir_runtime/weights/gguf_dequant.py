"""Decode the block formats of GGUF files: bytes in, float32 out (plain types as they are). Called by `gguf_checkpoint`.

Each format stores runs of 32 or 256 values of a row with scales of their own; the layouts are those of ggml-common.h.
The arithmetic is ggml's in its order, so results are equal to the last bit.
"""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from kvasir_runtime.kernels.quantized import CODEBOOKS, QuantFormat, QuantizedWeight, packed

KEPT: Final = {
    "Q8_0": QuantFormat(bits=8),
    "Q4_0": QuantFormat(bits=4),
    "Q4_1": QuantFormat(bits=4),
    "Q4_K": QuantFormat(bits=4, wide=True),
    "IQ4_NL": QuantFormat(bits=4, codebook="iq4"),
    "IQ4_XS": QuantFormat(bits=4, codebook="iq4", wide=True),
}
"""Types whose numbers and scales are taken over as they are."""
_PLAIN: Final = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def decoded(kind: str, raw: Tensor) -> Tensor:
    """Values of whole blocks: (bytes,) uint8 -> (values,), float32 or the plain type that is stored."""
    if kind in _PLAIN:
        return raw.view(_PLAIN[kind])
    num_bytes, decode = _BLOCKS[kind]
    return decode(raw.view(-1, num_bytes)).reshape(-1)


def kept(kind: str, raw: Tensor, rows: int) -> QuantizedWeight:
    """Rows of a type of KEPT in the format that holds the same numbers: exactly what `decoded` gives."""
    blocks = raw.view(-1, _BLOCKS[kind][0])
    if kind == "Q8_0":
        values, scales = blocks[:, 2:].view(torch.int8).reshape(rows, -1), _half(blocks, 0)
        return QuantizedWeight(format=KEPT[kind], values=values, scales=scales.reshape(rows, -1), minima=None)
    minima = None
    if kind == "Q4_0":
        q, scales = _nibbles(blocks[:, 2:], 16), _half(blocks, 0)
        minima = 8 * scales
    elif kind == "IQ4_NL":
        q, scales = _nibbles(blocks[:, 2:], 16), _half(blocks, 0)
    elif kind == "IQ4_XS":
        q, scales = _nibbles(blocks[:, 8:], 16), _xs_scales(blocks)
    elif kind == "Q4_1":
        q, scales, minima = _nibbles(blocks[:, 4:], 16), _half(blocks, 0), -_half(blocks, 2)
    else:
        q, (scales, minima) = _nibbles(blocks[:, 16:], 32), _scales(blocks)
    return QuantizedWeight(
        format=KEPT[kind],
        values=packed(q.reshape(rows, -1)),
        scales=scales.reshape(rows, -1),
        minima=None if minima is None else minima.reshape(rows, -1),
    )


def _q8_0(blocks: Tensor) -> Tensor:
    """d float16, 32 int8: d * q."""
    return _half(blocks, 0) * blocks[:, 2:].view(torch.int8).float()


def _q4_0(blocks: Tensor) -> Tensor:
    """d float16, 16 bytes whose low halves are the first 16 values: d * (q - 8)."""
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:], 16).view(-1, 32).float() - 8)


def _q4_1(blocks: Tensor) -> Tensor:
    """d, m float16, then as q4_0: d * q + m."""
    return _half(blocks, 0) * _nibbles(blocks[:, 4:], 16).view(-1, 32).float() + _half(blocks, 2)


def _q5_0(blocks: Tensor) -> Tensor:
    """d float16, 4 bytes of fifth bits, then as q4_0: d * (q - 16)."""
    return _half(blocks, 0) * (_five_bits(blocks[:, 2:]) - 16)


def _q5_1(blocks: Tensor) -> Tensor:
    """d, m float16, then as q5_0: d * q + m."""
    return _half(blocks, 0) * _five_bits(blocks[:, 4:]) + _half(blocks, 2)


def _iq4_nl(blocks: Tensor) -> Tensor:
    """d float16, 16 bytes as in q4_0, but of places in a list of values: d * value."""
    return _half(blocks, 0) * _listed(_nibbles(blocks[:, 2:], 16).view(-1, 32))


def _iq4_xs(blocks: Tensor) -> Tensor:
    """d float16, 8 scales of 6 bits (2 bytes of upper pairs of bits, 4 of lower halves), 128 bytes as in iq4_nl."""
    return _xs_scales(blocks).unsqueeze(2) * _listed(_nibbles(blocks[:, 8:], 16).view(-1, 8, 32))


def _xs_scales(blocks: Tensor) -> Tensor:
    """Of iq4_xs: (blocks, 8) float32."""
    high = (blocks[:, 2:4].unsqueeze(2) >> _shifts(0, 2, 4, 6, like=blocks).view(1, 1, 4)) & 3
    low = (blocks[:, 4:8].unsqueeze(2) >> _shifts(0, 4, like=blocks).view(1, 1, 2)) & 15
    return _half(blocks, 0) * ((low.view(-1, 8) | (high.view(-1, 8) << 4)).float() - 32)


def _q2_k(blocks: Tensor) -> Tensor:
    """16 bytes of a scale's and a minimum's 4 bits, 64 bytes of pairs of bits, d, dmin float16: as q4_k."""
    scale = (_half(blocks, 80) * (blocks[:, :16] & 15).float()).unsqueeze(2)
    minimum = (_half(blocks, 82) * (blocks[:, :16] >> 4).float()).unsqueeze(2)
    return scale * _pairs_of_bits(blocks[:, 16:80]).float() - minimum


def _q3_k(blocks: Tensor) -> Tensor:
    """32 bytes of third bits, 64 of pairs of bits, 12 of scales, d float16: d * (scale - 32) * (q - 4).

    12 bytes hold 16 numbers of 6 bits: the lower halves of 0-7, those of 8-15 above them, then pairs of upper bits.
    """
    low = (blocks[:, 96:104].unsqueeze(1) >> _shifts(0, 4, like=blocks).view(1, 2, 1)) & 15
    high = (blocks[:, 104:108].unsqueeze(1) >> _shifts(0, 2, 4, 6, like=blocks).view(1, 4, 1)) & 3
    scale = _half(blocks, 108) * ((low.view(-1, 16) | (high.view(-1, 16) << 4)).float() - 32)
    third = (blocks[:, :32].unsqueeze(1) >> _shifts(*range(8), like=blocks).view(1, 8, 1)) & 1
    q = (_pairs_of_bits(blocks[:, 32:96]) | (third.view(-1, 16, 16) << 2)).float() - 4
    return scale.unsqueeze(2) * q


def _q4_k(blocks: Tensor) -> Tensor:
    """d, dmin float16, 8 pairs of 6-bit scale and minimum, 128 bytes: d * scale * q - dmin * minimum."""
    scale, minimum = _scales(blocks)
    q = _nibbles(blocks[:, 16:], 32).view(-1, 8, 32)
    return scale * q.float() - minimum


def _q5_k(blocks: Tensor) -> Tensor:
    """As q4_k, with a fifth bit: bit j of byte i of 32 bytes belongs to value i of sub-block j."""
    scale, minimum = _scales(blocks)
    low = _nibbles(blocks[:, 48:], 32).view(-1, 8, 32)
    high = (blocks[:, 16:48].unsqueeze(1) >> _shifts(*range(8), like=blocks).view(1, 8, 1)) & 1
    return scale * (low | (high << 4)).float() - minimum


def _q6_k(blocks: Tensor) -> Tensor:
    """128 bytes of low halves, 64 of upper pairs of bits, 16 int8 scales, d float16: d * scale * (q - 32)."""
    low = _nibbles(blocks[:, :128], 64).view(-1, 8, 32)
    high = _pairs_of_bits(blocks[:, 128:192]).view(-1, 8, 32)
    scale = _half(blocks, 208) * blocks[:, 192:208].view(torch.int8).float()
    q = (low | (high << 4)).float() - 32
    return scale.unsqueeze(2) * q.view(-1, 16, 16)


def _half(blocks: Tensor, at: int) -> Tensor:
    """The float16 at a byte of each block: (blocks, 1) float32."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor, run: int) -> Tensor:
    """Low halves of each run of bytes, then its high halves: (blocks, runs, 2, run) uint8."""
    return (packed.reshape(packed.shape[0], -1, 1, run) >> _shifts(0, 4, like=packed).view(1, 1, 2, 1)) & 15


def _pairs_of_bits(packed: Tensor) -> Tensor:
    """Of each run of 32 bytes the lowest pairs of bits, then the next: (blocks, 16, 16) uint8."""
    shifts = _shifts(0, 2, 4, 6, like=packed).view(1, 1, 4, 1)
    return ((packed.reshape(-1, 2, 1, 32) >> shifts) & 3).view(-1, 16, 16)


def _five_bits(packed: Tensor) -> Tensor:
    """4 bytes of fifth bits, one for each of the 32 values whose other four are in 16 bytes: (blocks, 32) float32."""
    high = (packed[:, :4].unsqueeze(2) >> _shifts(*range(8), like=packed).view(1, 1, 8)) & 1
    return (_nibbles(packed[:, 4:], 16).view(-1, 32) | (high.view(-1, 32) << 4)).float()


def _listed(places: Tensor) -> Tensor:
    """The values of IQ4 at these places, float32."""
    return torch.tensor(CODEBOOKS["iq4"], dtype=torch.float32, device=places.device)[places.int()]


def _shifts(*amounts: int, like: Tensor) -> Tensor:
    return torch.tensor(amounts, dtype=torch.uint8, device=like.device)


def _scales(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """d * scale and dmin * minimum of the 8 sub-blocks: (blocks, 8, 1) float32 each.

    12 bytes hold 16 numbers of 6 bits: scales 0-3, minima 0-3 with the upper bits of numbers 4-7 above them, then the
    lower halves of scales and minima 4-7.
    """
    first, second, rest = blocks[:, 4:16].reshape(-1, 3, 4).unbind(1)
    scale = torch.cat((first & 63, (rest & 15) | ((first >> 2) & 48)), dim=1)
    minimum = torch.cat((second & 63, (rest >> 4) | ((second >> 2) & 48)), dim=1)
    return (_half(blocks, 0) * scale.float()).unsqueeze(2), (_half(blocks, 2) * minimum.float()).unsqueeze(2)


_BLOCKS: Final[dict[str, tuple[int, Callable[[Tensor], Tensor]]]] = {
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q5_0": (22, _q5_0),
    "Q5_1": (24, _q5_1),
    "IQ4_NL": (18, _iq4_nl),
    "IQ4_XS": (136, _iq4_xs),
    "Q2_K": (84, _q2_k),
    "Q3_K": (110, _q3_k),
    "Q8_0": (34, _q8_0),
    "Q4_K": (144, _q4_k),
    "Q5_K": (176, _q5_k),
    "Q6_K": (210, _q6_k),
}
