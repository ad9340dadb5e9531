"""What is made of the driver's events, with a driver that the test plays."""

# ruff: noqa: N802 - its functions have the driver's names

import ctypes
import queue
import threading

import pytest

from kvasir_runtime.engine import xid_monitor
from kvasir_runtime.engine.xid_monitor import RECENT_S, SUCCESS, TIMEOUT, XID_CRITICAL, XidMonitor

ILLEGAL = "CUDA error: an illegal memory access was encountered"


class Driver:
    """NVML with as many devices; events are put in by the test, and a code that is no event ends the listening."""

    def __init__(self, devices: int = 1, **codes: int) -> None:
        self.devices, self.codes, self.registered = devices, codes, []
        self.events: queue.Queue[tuple[int, int, int]] = queue.Queue()

    def nvmlInit_v2(self) -> int:
        return self.codes.get("init", SUCCESS)

    def nvmlDeviceGetCount_v2(self, count) -> int:
        count._obj.value = self.devices
        return SUCCESS

    def nvmlEventSetCreate(self, events) -> int:
        events._obj.value = 77
        return SUCCESS

    def nvmlDeviceGetHandleByIndex_v2(self, index, device) -> int:
        device._obj.value = 100 + index
        return SUCCESS

    def nvmlDeviceRegisterEvents(self, device, mask, events) -> int:
        self.registered.append((device.value, mask.value, ctypes.sizeof(mask), events.value))
        return self.codes.get("register", SUCCESS)

    def nvmlEventSetWait_v2(self, events, data, timeout_ms) -> int:
        assert (events.value, timeout_ms) == (77, 1000)
        code, kind, number = self.events.get(timeout=60)
        data._obj.event_type, data._obj.event_data = kind, number
        return code


def heard(driver, clock=lambda: 0.0):
    """After the driver said everything, and then that the device is lost."""
    made = XidMonitor(lambda: driver, clock=clock)
    driver.events.put((15, 0, 0))
    made.listen()
    return made


def test_the_memory_of_an_event_is_laid_out_as_the_driver_has_it():
    assert [getattr(xid_monitor.NvmlEventData, name).offset for name, _ in xid_monitor.NvmlEventData._fields_] == [
        0,
        8,
        16,
        24,
        28,
    ]
    assert ctypes.sizeof(xid_monitor.NvmlEventData) == 32


def test_xids_of_all_devices_are_reported():
    driver = Driver(2)
    driver.events.put((TIMEOUT, 0, 0))
    driver.events.put((SUCCESS, 0x10, 5))  # of the clock
    driver.events.put((SUCCESS, XID_CRITICAL, 79))
    made = heard(driver)
    assert driver.registered == [(100, 8, 8, 77), (101, 8, 8, 77)]
    assert made.words(ILLEGAL) == f"DeviceFault: Xid 79 (the GPU has fallen off the bus): {ILLEGAL}"
    assert made.words("no config.json") == "no config.json"


def test_the_last_one_is_noted_for_the_watchdog(tmp_path):
    for note in (tmp_path / "xid", tmp_path / "missing" / "xid"):
        driver = Driver()
        for event in ((SUCCESS, XID_CRITICAL, 31), (SUCCESS, XID_CRITICAL, 79), (15, 0, 0)):
            driver.events.put(event)
        XidMonitor(lambda driver=driver: driver, clock=lambda: 7.5, note=note).listen()
    assert (tmp_path / "xid").read_text() == "7.5 79"


def test_an_old_xid_is_not_the_reason_and_a_late_one_is(monkeypatch):
    monkeypatch.setattr(xid_monitor, "LATE_S", 60.0)  # however late this machine runs the thread
    now = [0.0]
    driver = Driver()
    made = XidMonitor(lambda: driver, clock=lambda: now[0])
    made.begin()
    driver.events.put((SUCCESS, XID_CRITICAL, 13))
    while not made._reported.is_set():
        threading.Event().wait(0.001)
    now[0] = RECENT_S + 1
    driver.events.put((SUCCESS, XID_CRITICAL, 31))
    assert made.words(ILLEGAL) == f"DeviceFault: Xid 31 (memory page fault): {ILLEGAL}"
    driver.events.put((15, 0, 0))


@pytest.mark.parametrize("driver", [Driver(0), Driver(init=9), Driver(register=3), object()])
def test_without_a_driver_that_tells_the_words_must_do(driver):
    made = XidMonitor(lambda: driver)
    made.listen()
    assert made.words(ILLEGAL) == f"DeviceFault: {ILLEGAL}"
