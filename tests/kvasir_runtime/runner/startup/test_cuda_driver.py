"""Why there is no CUDA device, with a driver that the test plays."""

# ruff: noqa: N802 - its functions have the driver's names

from pathlib import Path

import pytest

from kvasir_api import names
from kvasir_runtime.errors import DriverTooOldError, NoDeviceError, StartError
from kvasir_runtime.runner.startup import cuda_driver

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.90.07  Release Build\nGCC version: 12\n"


class Driver:
    """libcuda of a version of CUDA, with so many devices, whose start gives a code."""

    def __init__(self, version: int = 13_000, *, devices: int = 0, code: int = 0) -> None:
        self.version, self.devices, self.code = version, devices, code

    def cuDriverGetVersion(self, version) -> int:
        version._obj.value = self.version
        return 0

    def cuInit(self, flags: int) -> int:
        assert flags == 0
        return self.code

    def cuDeviceGetCount(self, count) -> int:
        count._obj.value = self.devices
        return 0

    def cuGetErrorString(self, code: int, text) -> int:
        text._obj.value = {802: b"system not yet initialized", 100: b"no CUDA-capable device is detected"}.get(code)
        return 0 if text._obj.value else 1


def missing(name: str) -> Driver:
    raise OSError(f"{name}: cannot open shared object file")


@pytest.mark.parametrize(
    ("built_for", "load", "error", "words"),
    [
        (None, missing, NoDeviceError, "NoDevice: this installation of torch is without CUDA"),
        ("13.0", missing, NoDeviceError, "NoDevice: no NVIDIA driver is here"),
        ("13.0", lambda _: Driver(code=100), NoDeviceError, "NoDevice: the NVIDIA driver 550.90.07 shows 0 devices"),
        ("13.0", lambda _: Driver(), NoDeviceError, "CUDA_VISIBLE_DEVICES is '9'"),
        (
            "13.0",
            lambda _: Driver(12_040, devices=1),
            DriverTooOldError,
            "DriverTooOld: the NVIDIA driver 550.90.07 runs CUDA 12.4, and this runtime needs CUDA 13.0: driver 580",
        ),
        ("12.8", lambda _: Driver(12_040, code=100), NoDeviceError, "shows 0 devices"),
        ("12.8", lambda _: Driver(11_080, code=100), DriverTooOldError, "driver 525 or later"),
        ("13.0", lambda _: Driver(code=802), StartError, "CUDA error: system not yet initialized"),
        ("13.0", lambda _: Driver(code=777), StartError, "CUDA error: number 777"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, monkeypatch, built_for, load, error, words) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "9")
    (tmp_path / "version").write_text(OPEN)
    found = cuda_driver.absence(built_for, load, tmp_path / "version")
    assert type(found) is error
    assert words in str(found)
    assert "\n" not in str(found)
    assert not str(found).startswith(names.TOO_SMALL)


def test_a_release_that_the_kernel_does_not_show_is_left_out(tmp_path: Path) -> None:
    found = cuda_driver.absence("13.0", lambda _: Driver(12_080), tmp_path / "none")
    assert str(found).startswith("DriverTooOld: the NVIDIA driver runs CUDA 12.8, ")
