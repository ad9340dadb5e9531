"""Tiles of short numbers as the type that tensor cores multiply: e4m3, e2m1, 8 and 4 bits. Used by kernels of products.

Compiled, two numbers share a register and an instruction, from bit patterns: an exponent that is right but for a power
of two, or a number behind the leading bits of a larger one. Triton's own conversions take two to four times as many
instructions, and these are what bounds a product whose weights are a byte. Interpreted, and in float32, the same values
come from plain operations; a card's tests hold both to one reference.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr


def _e4m3_asm(kind: str, shift: int, mask: int, factor: int) -> constexpr:
    """Four bytes to two registers: the sign to the top, the rest to where exponent and mantissa meet, times a power."""
    half = f"""
shr.b32 s, t, {shift};
and.b32 s, s, {mask << 16 | mask:#x};
lop3.b32 t, t, 0x80008000, s, 0xea;
fma.rn.{kind}x2 $%d, t, factor, none;"""
    return constexpr(f"""{{
.reg .b32 t, s, factor, none;
mov.b32 factor, {factor << 16 | factor:#x};
mov.b32 none, 0x80008000;
prmt.b32 t, $2, 0, 0x1404;{half % 0}
prmt.b32 t, $2, 0, 0x3424;{half % 1}
}}""")


def _nibble_asm(shift: int, lead: int) -> constexpr:
    """Four bytes to two registers: a half of each as the last bits of `lead`."""
    half = f"""
shr.b32 t, t, {shift};
lop3.b32 $%d, t, 0x000f000f, {lead << 16 | lead:#x}, 0xea;"""
    return constexpr(f"""{{
.reg .b32 t;
prmt.b32 t, $2, 0, 0x4140;{half % 0}
prmt.b32 t, $2, 0, 0x4342;{half % 1}
}}""")


def _e2m1_asm(kind: str, sign: int, rest: int, mask: int, factor: int) -> constexpr:
    """Four bytes to two registers, a half of each: as of e4m3, with its sign and its rest moved up so many bits."""
    half = f"""
shl.b32 s, t, {rest};
and.b32 s, s, {mask << 16 | mask:#x};
shl.b32 t, t, {sign};
lop3.b32 t, t, 0x80008000, s, 0xea;
fma.rn.{kind}x2 $%d, t, factor, none;"""
    return constexpr(f"""{{
.reg .b32 t, s, factor, none;
mov.b32 factor, {factor << 16 | factor:#x};
mov.b32 none, 0x80008000;
prmt.b32 t, $2, 0, 0x4140;{half % 0}
prmt.b32 t, $2, 0, 0x4342;{half % 1}
}}""")


_E4M3_BFLOAT16: Final = _e4m3_asm("bf16", 4, 0x07F0, 0x7B80)
_E4M3_FLOAT16: Final = _e4m3_asm("f16", 1, 0x3F80, 0x5C00)
_LOW_BFLOAT16, _HIGH_BFLOAT16 = _nibble_asm(0, 0x4300), _nibble_asm(4, 0x4300)
_LOW_FLOAT16, _HIGH_FLOAT16 = _nibble_asm(0, 0x6400), _nibble_asm(4, 0x6400)

_LOW_E2M1_BFLOAT16, _HIGH_E2M1_BFLOAT16 = (_e2m1_asm("bf16", 12 - up, 6 - up, 0x01C0, 0x7E80) for up in (0, 4))
_LOW_E2M1_FLOAT16, _HIGH_E2M1_FLOAT16 = (_e2m1_asm("f16", 12 - up, 9 - up, 0x0E00, 0x7400) for up in (0, 4))

# Ones that depend on a tile of bytes by name only.
_ONES_BFLOAT16 = constexpr("mov.b32 $0, 0x3f803f80; mov.b32 $1, 0x3f803f80;")
_ONES_FLOAT16 = constexpr("mov.b32 $0, 0x3c003c00; mov.b32 $1, 0x3c003c00;")

_OFFSETS: Final = {torch.bfloat16: 128, torch.float16: 1024, torch.float32: 0}


_TOP: Final = 127 + 12


def offset(dtype: torch.dtype) -> int:
    """What `nibbles` adds to each number: the value of the bits in front of it."""
    return _OFFSETS[dtype]


def of_rows(scales: Tensor, units: Tensor) -> tuple[Tensor, Tensor]:
    """Scales that are powers of two with the largest of each row taken to its unit, so that float16 holds the numbers.

    scales: (rows, groups) uint8, as e8m0; units: (rows,) float32. The largest becomes 2^12, of which e2m1 has 24,576 at
    most; what is 2^-35 of it and smaller loses bits in float16.
    """
    largest = scales.amax(dim=1, keepdim=True).int()
    return (scales + (_TOP - largest)).clamp_(min=0).to(torch.uint8), torch.ldexp(units, (largest - _TOP).view(-1))


@triton.jit
def e4m3(tile, dtype: tl.constexpr, COMPILED: tl.constexpr):
    """int8 bit patterns of e4m3 as dtype, exactly; a NaN becomes a number."""
    if COMPILED and dtype == tl.bfloat16:
        result = tl.inline_asm_elementwise(_E4M3_BFLOAT16, "=r,=r,r", [tile], dtype=tl.bfloat16, is_pure=True, pack=4)
    elif COMPILED and dtype == tl.float16:
        result = tl.inline_asm_elementwise(_E4M3_FLOAT16, "=r,=r,r", [tile], dtype=tl.float16, is_pure=True, pack=4)
    else:
        bits = (tile.to(tl.int32) << 20) & -2014314496  # 0x87f00000: sign, and seven bits at float32's last exponents
        result = (bits.to(tl.float32, bitcast=True) * 1.329227995784916e36).to(dtype)  # 2^120
    return result


@triton.jit
def nibbles(tile, dtype: tl.constexpr, HIGH: tl.constexpr, COMPILED: tl.constexpr):
    """The low or high halves of int8 bytes, 0..15, plus `offset`, as dtype, exactly."""
    if COMPILED and dtype == tl.bfloat16:
        asm: tl.constexpr = _HIGH_BFLOAT16 if HIGH else _LOW_BFLOAT16
        result = tl.inline_asm_elementwise(asm, "=r,=r,r", [tile], dtype=tl.bfloat16, is_pure=True, pack=4)
    elif COMPILED and dtype == tl.float16:
        shorter: tl.constexpr = _HIGH_FLOAT16 if HIGH else _LOW_FLOAT16
        result = tl.inline_asm_elementwise(shorter, "=r,=r,r", [tile], dtype=tl.float16, is_pure=True, pack=4)
    else:
        wide = tile.to(tl.int32)
        bits = (wide >> 4) & 15 if HIGH else wide & 15
        if dtype == tl.bfloat16:
            bits += 128
        elif dtype == tl.float16:
            bits += 1024
        result = bits.to(tl.float32).to(dtype)
    return result


@triton.jit
def e2m1(tile, dtype: tl.constexpr, HIGH: tl.constexpr, COMPILED: tl.constexpr):
    """The low or high halves of int8 bytes, codes of e2m1, as dtype, exactly."""
    if COMPILED and dtype == tl.bfloat16:
        asm: tl.constexpr = _HIGH_E2M1_BFLOAT16 if HIGH else _LOW_E2M1_BFLOAT16
        result = tl.inline_asm_elementwise(asm, "=r,=r,r", [tile], dtype=tl.bfloat16, is_pure=True, pack=4)
    elif COMPILED and dtype == tl.float16:
        shorter: tl.constexpr = _HIGH_E2M1_FLOAT16 if HIGH else _LOW_E2M1_FLOAT16
        result = tl.inline_asm_elementwise(shorter, "=r,=r,r", [tile], dtype=tl.float16, is_pure=True, pack=4)
    else:
        code = tile.to(tl.int32) >> 4 if HIGH else tile.to(tl.int32)
        bits = (code << 28) & -2147483648 | (code & 7) << 22  # the sign, and three bits at float32's last exponents
        result = (bits.to(tl.float32, bitcast=True) * 8.507059173023462e37).to(dtype)  # 2^126
    return result


@triton.jit
def short_scale(byte, E4M3: tl.constexpr):
    """A byte 0.. in an int32, a positive scale in e4m3 or a power of two (e8m0), as float32, exactly."""
    if E4M3:
        result = (byte << 20).to(tl.float32, bitcast=True) * 1.329227995784916e36  # 2^120
    else:
        result = tl.maximum(byte << 23, 0x00400000).to(tl.float32, bitcast=True)  # 2^-127 has no exponent of its own
    return result


@triton.jit
def ones(tile, dtype: tl.constexpr, COMPILED: tl.constexpr):
    """Ones in the shape of a tile of bytes.

    They come from the tile so that the compiler lays them out as what is decoded from it: what both are multiplied with
    is read ahead only if it is wanted in one layout.
    """
    if COMPILED and dtype == tl.bfloat16:
        result = tl.inline_asm_elementwise(_ONES_BFLOAT16, "=r,=r,r", [tile], dtype=tl.bfloat16, is_pure=True, pack=4)
    elif COMPILED and dtype == tl.float16:
        result = tl.inline_asm_elementwise(_ONES_FLOAT16, "=r,=r,r", [tile], dtype=tl.float16, is_pure=True, pack=4)
    else:
        result = tl.full(tile.shape, 1.0, dtype)
    return result


@triton.jit
def to_e4m3(x, COMPILED: tl.constexpr):
    """float32 within +-448 as e4m3, to the nearest, ties to even.

    The interpreter drops the carry into the exponent: it gets what e4m3 holds already.
    """
    if not COMPILED:
        bits = x.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000
        small = (x + 24576.0) - 24576.0  # 1.5 * 2^14, whose last bit is the smallest step of e4m3
        x = tl.where(tl.abs(x) < 0.015625, small, bits.to(tl.float32, bitcast=True))
    return x.to(tl.float8e4nv)
