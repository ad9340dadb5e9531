"""Reasons why a runtime does not start, each a single line that a person can act on; and whether memory ran out.

    StartError
    |-- ModelError         the model is missing, damaged, or of a kind that this runtime does not serve
    |   `-- UnservedError  no family of ours serves it; transformers may
    |-- ModelUnavailableError  the hub does not give the model, or the disk cannot hold it
    |-- CapacityError      the device or the container has not enough memory for the model and a useful KV cache
    |-- NoDeviceError      no CUDA device is there
    |-- DriverTooOldError  the driver does not run the CUDA that torch was built for
    `-- DeviceMemoryError  the device has not enough free memory for a model that may fit an empty one

Raised by source, weights, models and runner; the engine turns them into `EngineFailed` and exits with code 1. Those
with a prefix are a reason of their own in the service's status (`names.REFUSALS`).
"""

from typing import ClassVar

from kvasir_api import names


class StartError(Exception):
    """Base of all reasons not to start; str() is one line, which starts with the prefix."""

    prefix: ClassVar[str] = ""

    def __init__(self, message: str) -> None:
        super().__init__(f"{self.prefix}{message}")


class ModelError(StartError):
    """The model cannot be served: which file, key or tensor, what is wrong, and what was expected."""


class UnservedError(ModelError):
    """No family of ours serves a model. reason: why; the message also says what else may serve it."""

    def __init__(self, reason: str, instead: str) -> None:
        super().__init__(f"{reason}; {instead}")
        self.reason = reason


class ModelUnavailableError(StartError):
    """The model could not be fetched: what the hub, the network or the disk answered, and what helps."""

    prefix = names.MODEL_UNAVAILABLE


class CapacityError(StartError):
    """Too little memory: how much is needed, how much there is, and which option helps."""

    prefix = names.TOO_SMALL


class NoDeviceError(StartError):
    """No CUDA device is there: whether driver or device is missing, and what shows one to this process."""

    prefix = names.NO_DEVICE


class DriverTooOldError(StartError):
    """The driver is older than this runtime's CUDA: both versions."""

    prefix = names.DRIVER_TOO_OLD


class DeviceMemoryError(StartError):
    """Memory of the device ran out during the start: how much is free and held, and which option helps."""

    prefix = names.OUT_OF_DEVICE_MEMORY


class RankLostError(Exception):
    """A process that computes a part of the model has ended, so the others cannot go on: which one, and why."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory of the host or of a device ran out: as Python and numpy say it, or torch and CUDA's libraries,
    whose errors are all of one type and differ in their words.
    """
    words = ("out of memory", "can't allocate memory", "ALLOC_FAILED", "bad_alloc")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    )
