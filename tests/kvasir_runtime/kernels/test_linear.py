"""Linear layers on a CPU without kernels of ours: few compiled sizes, and a float32 row with the same bits in all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kvasir_runtime.kernels import linear, quantize
from kvasir_runtime.kernels.linear import Weight
from kvasir_runtime.kernels.quantized import QuantFormat

SHAPES = ((17, 3), (96, 768), (100, 33), (130, 4096), (24, 11008))
ROWS = (1, 2, 3, 4, 5, 8, 15, 16, 17, 33, 64, 299)
PROGRAM = "from kvasir_runtime.kernels import linear; import test_linear; print(test_linear.differing())"


def differing() -> list[tuple[int, int, str, int]]:
    """Shapes, weights and numbers of rows whose results differ from those in a larger batch."""
    found = []
    for outputs, k in SHAPES:
        generator = torch.Generator().manual_seed(outputs)
        plain, x = torch.randn(outputs, k, generator=generator), torch.randn(300, k, generator=generator)
        weights: dict[str, Weight] = {"float32": plain}
        if k % 32 == 0:
            weights["int8"] = quantize.reference(plain, QuantFormat(bits=8))
        for name, weight in weights.items():
            layer = linear.cpu(weight, None)
            whole = layer(x)
            found += [
                (outputs, k, name, rows)
                for rows in ROWS
                if not torch.equal(layer(x[:rows].clone()), whole[:rows])
                or not torch.equal(layer(x[300 - rows :].clone()), whole[300 - rows :])
            ]
    return found


def test_a_float32_row_has_the_same_bits_in_every_batch() -> None:
    assert differing() == []


@pytest.mark.parametrize("isa", ["AVX2", "AVX512_CORE"])
def test_it_has_them_with_the_instructions_of_other_processors(isa: str) -> None:
    """oneDNN chooses its kernels once, so each choice takes a process; it never takes what the processor lacks."""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": isa, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", PROGRAM]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.stdout.strip() == "[]", result.stdout + result.stderr


@pytest.mark.skipif(not linear.packs(torch.float32), reason="torch without oneDNN")
def test_products_are_compiled_for_few_numbers_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[int] = []

    def spy(x: torch.Tensor, weight: torch.Tensor, *rest: object) -> torch.Tensor:
        compiled.append(x.shape[0])
        return x @ weight.T

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", spy)
    weight = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    for rows in range(1, 513):
        x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(rows))
        torch.testing.assert_close(linear.product(x, weight), x @ weight.T)
        assert rows <= compiled[-1] <= max(rows, rows * 9 // 8)
    assert len(set(compiled)) == 56
