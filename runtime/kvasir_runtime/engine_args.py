"""How the API process starts the engine process, and a file by which it learns of a fault of the device."""

from typing import Any, Final

import msgspec

XID_NOTE: Final = "xid"
"""File beside the engine's socket with the last fault that the driver reported: monotonic seconds, and the Xid."""


class EngineArgs(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of the engine process: one line of JSON that it reads from its standard input at its start.

    address: where its ROUTER socket binds, ipc:// in a private directory. model: an existing directory. options: the
    fields of ServeOptions by their Python names, without model and without secrets. The input stays open for the life
    of the API process, so its end means to the engine that no client is left.
    """

    address: str
    model: str
    options: dict[str, Any]
