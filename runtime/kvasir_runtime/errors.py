"""Reasons why a runtime does not start, each a single line that a person can act on.

    StartError
    |-- ModelError     the model is missing, damaged, or of a kind that this runtime does not serve
    `-- CapacityError  the device or the container has not enough memory for the model and a useful KV cache

Raised by source, weights, models and runner; the engine turns them into `EngineFailed` and exits with code 1.
"""

from kvasir_api import names


class StartError(Exception):
    """Base of all reasons not to start; str() is one line."""


class ModelError(StartError):
    """The model cannot be served: which file, key or tensor, what is wrong, and what was expected."""


class CapacityError(StartError):
    """Too little memory: how much is needed, how much there is, and which option helps. Starts with TOO_SMALL."""

    def __init__(self, message: str) -> None:
        super().__init__(f"{names.TOO_SMALL}{message}")
