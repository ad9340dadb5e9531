"""A call ends by its deadline, however slowly the other side goes from one frame to the next."""

import time

from kvasir_runtime.nodes.key_proof import NONCE_BYTES, Purpose, call

PURPOSE = Purpose(magic=b"test 1\n", label=b"test ", called="test", key="the test")
KEY = b"k" * 32
PAUSE_S = 0.02


class SlowSide:
    """Plays the called side, each frame of it after a pause. given: seconds that the caller gave for each of its own
    calls."""

    peer = "slow"

    def __init__(self) -> None:
        self.given: list[float] = []
        self._nonce, self._sent = b"n" * NONCE_BYTES, b""

    def send(self, message: bytes, *, within_s: float) -> None:
        self.given.append(within_s)
        self._sent = message
        time.sleep(PAUSE_S)

    def receive(self, most: int, *, within_s: float) -> bytearray:
        self.given.append(within_s)
        time.sleep(PAUSE_S)
        if not self._sent:
            return bytearray(PURPOSE.magic + self._nonce)
        body = b"body"
        return bytearray(PURPOSE.code(KEY, b"answer", self._nonce + self._sent[:NONCE_BYTES], body) + body)


def test_what_one_frame_took_is_missing_for_the_next() -> None:
    side = SlowSide()
    body, _ = call(side, PURPOSE, KEY, b"", within_s=60.0, answer_s=60.0)  # type: ignore[arg-type]
    assert body == b"body"
    greeting, sending, answer = side.given
    assert greeting - sending >= PAUSE_S
    assert sending - answer >= PAUSE_S


def test_what_has_come_counts_though_the_time_is_over() -> None:
    side = SlowSide()
    body, _ = call(side, PURPOSE, KEY, b"", within_s=PAUSE_S, answer_s=PAUSE_S)  # type: ignore[arg-type]
    assert (body, side.given[1:]) == (b"body", [0.0, 0.0])
