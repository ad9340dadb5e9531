"""Why torch finds no CUDA device, asked of the driver itself. Called by `placement` and nowhere else.

Torch has one answer for a missing driver, an old one and a missing device, which have different cures. The driver's API
reports its version and its devices without a context, so that nothing here takes memory of a device.
"""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from kvasir_runtime.errors import DriverTooOldError, NoDeviceError, StartError

LIBRARY: Final = "libcuda.so.1"
VERSION_FILE: Final = Path("/proc/driver/nvidia/version")
DRIVERS: Final = {11: 450, 12: 525, 13: 580}
"""The oldest release of the driver for each major version of CUDA (toolkit release notes)."""
SUCCESS: Final = 0
NO_DEVICE: Final = 100
"""CUDA_ERROR_NO_DEVICE."""

Load = Callable[[str], Any]


def absence(built_for: str | None, load: Load = ctypes.CDLL, version_file: Path = VERSION_FILE) -> StartError:
    """The reason why there is no CUDA device for a torch that was built for this version of CUDA, None for none.

    load: gives the driver's library by name, or raises OSError where there is none.
    """
    if built_for is None:
        return NoDeviceError("this installation of torch is without CUDA; install the one with it, or set --device cpu")
    try:
        driver = load(LIBRARY)
    except OSError:
        return NoDeviceError(
            f"no NVIDIA driver is here ({LIBRARY} cannot be loaded); in a container the runtime class or the device"
            " plugin of the node brings it; --device cpu computes without"
        )
    version = ctypes.c_int()
    if driver.cuDriverGetVersion(ctypes.byref(version)) == SUCCESS and version.value < _needed(built_for):
        return DriverTooOldError(
            f"the NVIDIA driver{_release(version_file)} runs CUDA {_name(version.value)}, and this runtime needs CUDA"
            f" {built_for}: driver {DRIVERS.get(_major(built_for), 'release of that version')} or later;"
            " update the driver of the node"
        )
    code, count = driver.cuInit(0), ctypes.c_int()
    if code == SUCCESS:
        code = driver.cuDeviceGetCount(ctypes.byref(count))
    if code not in (SUCCESS, NO_DEVICE):
        return StartError(f"the NVIDIA driver does not start: CUDA error: {_words(driver, code)}")
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    how = "" if shown is None else f", CUDA_VISIBLE_DEVICES is {shown!r}"
    return NoDeviceError(
        f"the NVIDIA driver{_release(version_file)} shows {count.value} devices to this process{how}; a pod gets one by"
        " its resources, and --device cpu computes without"
    )


def _major(built_for: str) -> int:
    return int(built_for.partition(".")[0])


def _needed(built_for: str) -> int:
    """The driver's number for the first version of CUDA with the same major number: 13000 for 13.x."""
    return _major(built_for) * 1000


def _name(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _release(version_file: Path) -> str:
    """The driver's release with a space before it, such as " 550.90.07"; empty where the kernel does not show it."""
    try:
        words = version_file.read_text(errors="replace").splitlines()[0].split()
    except (OSError, IndexError):
        return ""
    return next((f" {word}" for word in words if word[:1].isdigit() and "." in word), "")


def _words(driver: Any, code: int) -> str:
    text = ctypes.c_char_p()
    if driver.cuGetErrorString(code, ctypes.byref(text)) == SUCCESS and text.value:
        return text.value.decode(errors="replace")
    return f"number {code}"
