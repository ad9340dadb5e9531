"""How requests wait, as the picker reports it to the relay: a document over a socket of the gateway's pod. Pure."""

from typing import Final, Literal, get_args

import msgspec

HELD_SOCKET: Final = "held.sock"
NO_REPLICA: Final = "no_ready_replica"
"""The code of a request for which there is no replica, and none to wait for."""
WaitPhase = Literal["scale", "schedule", "image", "weights", "warm", "queue"]
"""Until a replica exists; until it has a node; until its container runs; until it has the model's weights; until it
takes requests; until it is the request's turn."""
WAIT_PHASES: Final[tuple[WaitPhase, ...]] = get_args(WaitPhase)


class HeldPlace(msgspec.Struct, frozen=True, kw_only=True):
    """One request that waits. place: from 1, of so many for its service. eta_s: seconds until it probably goes to a
    replica, None where that is not known."""

    place: int
    of: int
    phase: WaitPhase
    eta_s: float | None = None


HeldPlaces = dict[str, HeldPlace]
"""By the id under which the relay has a request."""
decode = msgspec.json.Decoder(HeldPlaces).decode
encode = msgspec.json.encode
