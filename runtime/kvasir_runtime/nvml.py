"""NVML, NVIDIA's management library, through ctypes: any process may read from it the devices that it sees.

Called by the engine's monitor of Xids and by the metrics of the API process. In a container the devices are its own.
"""

import ctypes
from typing import Any, Final

LIBRARY: Final = "libnvidia-ml.so.1"
SUCCESS: Final = 0


def load() -> Any:
    """The library. Raises OSError where there is no driver."""
    return ctypes.CDLL(LIBRARY)


def devices(nvml: Any) -> list[ctypes.c_void_p]:
    """Handles of all devices, after the library was made ready. Raises OSError when NVML refuses or sees none."""
    check(nvml.nvmlInit_v2(), "nvmlInit_v2")
    count = ctypes.c_uint()
    check(nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)), "nvmlDeviceGetCount_v2")
    found = [ctypes.c_void_p() for _ in range(count.value)]
    for index, device in enumerate(found):
        check(nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)), "nvmlDeviceGetHandleByIndex_v2")
    if not found:
        raise OSError("NVML sees no device")
    return found


def check(code: int, what: str) -> None:
    """Raises OSError for a call that failed."""
    if code != SUCCESS:
        raise OSError(f"{what}: NVML error {code}")
