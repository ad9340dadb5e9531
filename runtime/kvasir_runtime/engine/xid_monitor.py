"""Reads from the driver which Xids its devices report, so that a failure is reported by its name.

NVML reports them to any process, also without a right to read the kernel log. A thread of the engine process waits for
them; where there is no driver it ends at once. What a number means is said in `kvasir_api.device_faults`. The last one
is kept in a file too, for the watchdog of the API process: the loop of a lost device may wait for it for ever.
"""

import ctypes
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from kvasir_api import device_faults
from kvasir_runtime import nvml as nvml_library
from kvasir_runtime.nvml import SUCCESS, check

LOG: Final = logging.getLogger(__name__)
TIMEOUT: Final = 10
"""NVML_ERROR_TIMEOUT: nothing happened meanwhile."""
XID_CRITICAL: Final = 0x8
"""nvmlEventTypeXidCriticalError."""
WAIT_MS: Final = 1000
RECENT_S: Final = 60.0
"""An Xid that is older is not why a step fails now."""
LATE_S: Final = 1.0
"""The driver may report a moment after the program has seen its error."""


class NvmlEventData(ctypes.Structure):
    """nvmlEventData_t, in the form that nvmlEventSetWait_v2 fills."""

    _fields_ = (
        ("device", ctypes.c_void_p),
        ("event_type", ctypes.c_ulonglong),
        ("event_data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class XidMonitor:
    """load: gives NVML, or raises OSError where there is none. clock: monotonic seconds. note: the file, if any; it has
    the time of the last Xid on that clock and its number."""

    def __init__(
        self,
        load: Callable[[], Any] = nvml_library.load,
        *,
        clock: Callable[[], float] = time.monotonic,
        note: Path | None = None,
    ) -> None:
        self._load, self._clock, self._note = load, clock, note
        self._last: tuple[float, int] | None = None
        self._reported = threading.Event()
        self._listening = False

    def begin(self) -> None:
        """Listen on a thread of its own for the life of the process."""
        self._listening = True
        threading.Thread(target=self.listen, daemon=True, name="xids").start()

    def words(self, text: str) -> str:
        """The message of a failure: with its Xid if it is a device's, else the text as it is. Waits a moment for an
        Xid that is reported late."""
        if not device_faults.termination_message(text, None):
            return text
        self._reported.clear()  # before the look: what is reported after it ends the wait
        if self._listening and self._recent() is None:
            self._reported.wait(LATE_S)
        return device_faults.termination_message(text, self._recent())

    def listen(self) -> None:
        """Wait for events until NVML has none to give any more."""
        try:
            nvml = self._load()
            events = _registered(nvml)
        except (OSError, AttributeError) as error:
            LOG.debug("no driver reports Xids: %s", error)
            self._listening = False
            return
        data = NvmlEventData()
        while (code := nvml.nvmlEventSetWait_v2(events, ctypes.byref(data), WAIT_MS)) in (SUCCESS, TIMEOUT):
            if code == SUCCESS and data.event_type & XID_CRITICAL:
                self._record(int(data.event_data))
        LOG.warning("the driver reports no Xids any more: NVML error %d", code)
        self._listening = False

    def _record(self, xid: int) -> None:
        LOG.warning("the device reports Xid %d (%s)", xid, device_faults.XIDS.get(xid, "no common one"))
        self._last = now, _ = self._clock(), xid
        if self._note is not None:
            try:
                self._note.write_text(f"{now} {xid}")
            except OSError as error:
                LOG.warning("%s: %s", self._note, error.strerror)
        self._reported.set()

    def _recent(self) -> int | None:
        known = self._last
        return known[1] if known is not None and self._clock() - known[0] <= RECENT_S else None


def _registered(nvml: Any) -> ctypes.c_void_p:
    """A set of the Xids of all devices. Raises OSError when NVML refuses."""
    devices, events = nvml_library.devices(nvml), ctypes.c_void_p()
    check(nvml.nvmlEventSetCreate(ctypes.byref(events)), "nvmlEventSetCreate")
    for device in devices:
        # ctypes would hand a number of 64 bits over as an int.
        mask = ctypes.c_ulonglong(XID_CRITICAL)
        check(nvml.nvmlDeviceRegisterEvents(device, mask, events), "nvmlDeviceRegisterEvents")
    return events
