"""The instructions that decode short numbers on a card, executed here one by one for every byte there is."""

import re

import pytest
import torch

pytest.importorskip("triton")

from fakes.e2m1_checkpoints import WORTH
from kvasir_runtime.kernels.gpu import dequant

BYTES = torch.arange(256, dtype=torch.uint8)
E4M3 = BYTES.view(torch.float8_e4m3fn).float().nan_to_num(nan=480.0)
E4M3[255] = -480.0
E2M1 = WORTH.float()


def executed(asm: str, word: int) -> list[int]:
    """The two results of an assembly text for one register of four bytes."""
    registers, results = {"$2": word}, {}

    def value(name: str) -> int:
        return registers[name] if name in registers else int(name, 0)

    for line in re.split(r"[;\n{}]+", asm):
        if not line.strip() or line.startswith(".reg"):
            continue
        operation, rest = line.strip().split(" ", 1)
        target, *names = [name.strip() for name in rest.split(",")]
        operands = [value(name) for name in names]
        registers[target] = results[target] = OPERATIONS[operation](*operands)
    return [results["$0"], results["$1"]]


def permuted(a: int, b: int, selector: int) -> int:
    pool = a.to_bytes(4, "little") + b.to_bytes(4, "little")
    return int.from_bytes(bytes(pool[selector >> 4 * place & 15] for place in range(4)), "little")


def halves(word: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([word & 0xFFFF, word >> 16], dtype=torch.int32).to(torch.uint16).view(dtype)


def multiplied(dtype: torch.dtype, a: int, b: int, c: int) -> int:
    product = (halves(a, dtype).double() * halves(b, dtype).double() + halves(c, dtype).double()).to(dtype)
    low, high = product.view(torch.uint16).tolist()
    return int(low) | int(high) << 16


OPERATIONS = {
    "mov.b32": lambda a: a,
    "prmt.b32": permuted,
    "shr.b32": lambda a, count: a >> count,
    "shl.b32": lambda a, count: a << count & 0xFFFFFFFF,
    "and.b32": lambda a, b: a & b,
    "lop3.b32": lambda a, b, c, table: {0xEA: (a & b) | c}[table],
    "fma.rn.bf16x2": lambda a, b, c: multiplied(torch.bfloat16, a, b, c),
    "fma.rn.f16x2": lambda a, b, c: multiplied(torch.float16, a, b, c),
}


@pytest.mark.parametrize(
    ("name", "dtype", "want"),
    [
        ("_E4M3_BFLOAT16", torch.bfloat16, E4M3),
        ("_E4M3_FLOAT16", torch.float16, E4M3),
        ("_LOW_BFLOAT16", torch.bfloat16, (BYTES & 15) + 128.0),
        ("_HIGH_BFLOAT16", torch.bfloat16, (BYTES >> 4) + 128.0),
        ("_LOW_FLOAT16", torch.float16, (BYTES & 15) + 1024.0),
        ("_HIGH_FLOAT16", torch.float16, (BYTES >> 4) + 1024.0),
        ("_LOW_E2M1_BFLOAT16", torch.bfloat16, E2M1[BYTES.int() & 15]),
        ("_HIGH_E2M1_BFLOAT16", torch.bfloat16, E2M1[BYTES.int() >> 4]),
        ("_LOW_E2M1_FLOAT16", torch.float16, E2M1[BYTES.int() & 15]),
        ("_HIGH_E2M1_FLOAT16", torch.float16, E2M1[BYTES.int() >> 4]),
        ("_ONES_BFLOAT16", torch.bfloat16, torch.ones(256)),
        ("_ONES_FLOAT16", torch.float16, torch.ones(256)),
    ],
)
def test_every_byte_is_decoded(name: str, dtype: torch.dtype, want: torch.Tensor) -> None:
    found = []
    for first in range(0, 256, 4):
        word = int.from_bytes(bytes(BYTES[first : first + 4].tolist()), "little")
        for register in executed(getattr(dequant, name).value, word):
            found += halves(register, dtype).float().tolist()
    assert found == want.float().tolist()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_offset_is_what_stands_in_front_of_a_half(dtype: torch.dtype) -> None:
    leads = {torch.bfloat16: 0x4300, torch.float16: 0x6400}
    lead = halves(leads[dtype], dtype)[0].item() if dtype in leads else 0.0
    assert dequant.offset(dtype) == lead
