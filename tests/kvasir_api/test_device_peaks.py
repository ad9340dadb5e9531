"""Peaks of cards by name: those of data sheets, and none where a number would mislead."""

import pytest

from kvasir_api.device_peaks import BY_SHORT_NAME, PEAKS, peak


def test_a_card_is_found_by_its_name():
    found = peak("NVIDIA H200", "bfloat16")
    assert found is not None
    assert (found.flops_per_s, found.memory_bytes_per_s) == (989 * 10**12, 4800 * 10**9)
    assert peak("NVIDIA H200 (2 devices)", "float16") == found


@pytest.mark.parametrize(
    ("device", "dtype"),
    [
        ("NVIDIA H200", "float32"),
        ("NVIDIA H200 MIG 1g.18gb", "bfloat16"),
        ("NVIDIA H2000", "bfloat16"),
        ("cpu (8 threads, AVX512)", "bfloat16"),
        ("", "bfloat16"),
    ],
)
def test_what_is_not_known_has_no_peak(device, dtype):
    assert peak(device, dtype) is None


def test_every_card_has_a_short_name_of_its_own_a_memory_and_a_link_slower_than_it():
    assert len(BY_SHORT_NAME) == len(PEAKS)
    for device, sheet in PEAKS.items():
        assert 10**10 < sheet.memory_bytes < 10**12, device
        assert 10 <= sheet.link < sheet.memory_rate, device
        assert not device.startswith(sheet.short), device
    assert BY_SHORT_NAME["H100"].card.link_bytes_per_s == 450 * 10**9


def test_a_step_of_one_token_is_bound_by_memory_on_every_card():
    """A weight of two bytes is multiplied once: a card that computes less than it reads would be a slip of the pen."""
    for device in PEAKS:
        found = peak(device, "bfloat16")
        assert found is not None
        assert 50 < found.flops_per_s / found.memory_bytes_per_s < 500, device
