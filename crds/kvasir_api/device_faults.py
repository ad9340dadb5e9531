"""What a failed device is called: the runtime says it as its last words, the operator judges by them.

Xids are the driver's own numbers (NVIDIA, "Xid Errors"); without one the words of CUDA must do. Written by the engine
process, read from a container's termination message.
"""

import re
from typing import Final

from kvasir_api import names

XIDS: Final = {
    13: "exception of the graphics engine",
    31: "memory page fault",
    32: "invalid or corrupted push buffer",
    38: "driver firmware error",
    43: "reset of a channel that misbehaved",
    45: "preemptive removal of channels",
    46: "the GPU stopped processing",
    48: "memory error that ECC cannot correct",
    61: "breakpoint of the internal microcontroller",
    62: "halt of the internal microcontroller",
    63: "memory row remapped",
    64: "memory row could not be remapped",
    68: "exception of the video decoder",
    69: "exception of a graphics class",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    92: "high rate of corrected memory errors",
    94: "memory error that was contained",
    95: "memory error that was not contained",
    109: "timeout of a context switch",
    119: "timeout of the GPU's system processor",
    120: "error of the GPU's system processor",
    121: "error of the chip-to-chip link",
    140: "memory error that needs a reset",
    143: "the GPU could not be initialised",
}
"""The usual ones; another number stands without words."""
OF_PROGRAMS: Final = frozenset({13, 31, 32, 43, 45, 63, 68, 69, 94, 109})
"""Xids that a program can cause, or after which the device goes on: a restart in place is right at first."""
_HARDWARE: Final = re.compile(
    r"uncorrectable (ECC|NVLink) error|hardware stack error|busy or unavailable|no CUDA-capable device"
    r"|launch timed out and was terminated|CUDA error: unknown error|system not yet initialized|GPU is lost"
    r"|(driver initialization|unable to determine the device handle).*fail|nvmlInit.* failed|hardware error",
    re.IGNORECASE,
)
_STICKY: Final = re.compile(
    r"illegal (memory access|instruction)|misaligned address|device-side assert|unspecified launch failure"
    r"|invalid program counter|operation not supported on global/shared address space",
    re.IGNORECASE,
)
_XID: Final = re.compile(rf"^{names.DEVICE_FAULT}Xid (\d+)\b")


def termination_message(text: str, xid: int | None) -> str:
    """How an engine that failed with this text names the fault of its device; empty when it is none.

    xid: what the driver reported just before or after, if it is known.
    """
    if not (_HARDWARE.search(text) or _STICKY.search(text)):
        return ""
    return f"{names.DEVICE_FAULT}{text}" if xid is None else with_xid(text, xid)


def with_xid(text: str, xid: int) -> str:
    """How an engine is named that ended, or stands still, just after the driver reported this Xid."""
    meaning = f" ({XIDS[xid]})" if xid in XIDS else ""
    return f"{names.DEVICE_FAULT}Xid {xid}{meaning}: {text}"


def is_permanent(words: str) -> bool:
    """Whether a device with these last words will hardly serve again without somebody's help."""
    found = _XID.match(words)
    return int(found[1]) not in OF_PROGRAMS if found else bool(_HARDWARE.search(words))
