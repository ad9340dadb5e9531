"""Rows of 4 bits: what they hold, byte by byte, and how far it is from what was stored."""

import pytest
import torch

from kvasir_runtime.kernels import kv_int4, kv_int8


def test_a_row_is_codes_of_turned_numbers_and_their_scale() -> None:
    x = torch.tensor([[1.0, 2.0, -3.0, 0.5]])
    turned = torch.tensor([1 + 2 - 3 + 0.5, 1 - 2 - 3 - 0.5, 1 + 2 + 3 - 0.5, 1 - 2 + 3 + 0.5]) / 2
    assert torch.equal(kv_int4.hadamard(x)[0] * kv_int4.down(4), turned)
    row = kv_int4.quantize(x)
    scale = 2.75 / 15
    # 7.5 * turned / 2.75 + 7.5: 8.18, 1.36, 15 and 10.9.
    assert row[0, :2].tolist() == [8 + 16 * 1, 15 + 16 * 11]
    assert float(kv_int4.scales(row)) == pytest.approx(scale)
    held = torch.tensor([[1.0, -13.0, 15.0, 7.0]]) * scale
    torch.testing.assert_close(kv_int4.dequantize(row), kv_int4.hadamard(held) * kv_int4.back(4))


@pytest.mark.parametrize("dim", [2, 18, 24, 64, 80, 128, 256])
def test_turning_keeps_scores_and_is_undone_by_itself(dim: int) -> None:
    generator = torch.Generator().manual_seed(dim)
    query, key = torch.randn(2, 5, dim, generator=generator)
    turned = kv_int4.hadamard(key) * kv_int4.down(dim)
    torch.testing.assert_close(kv_int4.hadamard(turned) * kv_int4.back(dim), key)
    scores = (kv_int4.hadamard(query) * kv_int4.back(dim)) @ turned.T
    torch.testing.assert_close(scores, query @ key.T, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dim", [18, 64, 80, 128])
def test_a_turned_number_is_off_by_its_scale_at_most(dim: int) -> None:
    x = torch.randn(50, dim, generator=torch.Generator().manual_seed(1))
    row = kv_int4.quantize(x)
    apart = kv_int4.hadamard(kv_int4.dequantize(row) - x) * kv_int4.down(dim)
    assert (apart.abs() <= kv_int4.scales(row) * 1.0001).all()


def test_a_few_large_numbers_cost_the_others_little() -> None:
    x = torch.randn(100, 128, generator=torch.Generator().manual_seed(2))
    x[:, 7] *= 50
    apart = float((kv_int4.dequantize(kv_int4.quantize(x)) - x).std())
    steps = x.abs().amax(dim=1, keepdim=True) / 7.5
    plain = float(((x / steps).round() * steps - x).std())
    assert apart < plain / 1.5
    assert apart > float((kv_int8.dequantize(kv_int8.quantize(x)) - x).std())


def test_rows_of_zeros_stay_zeros() -> None:
    assert not kv_int4.dequantize(kv_int4.quantize(torch.zeros(3, 16))).any()
