"""The names of failed devices: what CUDA's words and the driver's numbers mean, and which faults last."""

import pytest

from kvasir_api import device_faults

ECC = "CUDA error: uncorrectable ECC error encountered"
ILLEGAL = "3 steps failed in a row, the last with CUDA error: an illegal memory access was encountered"


@pytest.mark.parametrize(
    ("text", "xid", "words"),
    [
        (ECC, None, f"DeviceFault: {ECC}"),
        (ECC, 48, f"DeviceFault: Xid 48 (memory error that ECC cannot correct): {ECC}"),
        (ILLEGAL, 79, f"DeviceFault: Xid 79 (the GPU has fallen off the bus): {ILLEGAL}"),
        (ILLEGAL, 999, f"DeviceFault: Xid 999: {ILLEGAL}"),
        ("CUDA out of memory. Tried to allocate 2 GiB", 79, ""),
        ("requests are left that the scheduler does not plan", 31, ""),
        ("no config.json", None, ""),
    ],
)
def test_a_device_says_what_it_failed_of(text, xid, words):
    assert device_faults.termination_message(text, xid) == words


@pytest.mark.parametrize(
    ("text", "xid", "lasts"),
    [
        (ECC, None, True),
        (ILLEGAL, None, False),
        (ILLEGAL, 31, False),
        (ILLEGAL, 13, False),
        (ILLEGAL, 79, True),
        (ILLEGAL, 119, True),
        (ECC, 94, False),  # contained: the rows are remapped, and the next process gets others
        ("CUDA error: unknown error", None, True),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", None, True),
        ("No CUDA-capable device is detected", None, True),
        ("CUDA error: unspecified launch failure", None, False),
        ("CUDA error: device-side assert triggered", None, False),
    ],
)
def test_what_a_program_can_cause_does_not_last(text, xid, lasts):
    assert device_faults.is_permanent(device_faults.termination_message(text, xid)) is lasts
