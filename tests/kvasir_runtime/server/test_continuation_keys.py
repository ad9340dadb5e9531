"""Keys of continuation tokens: the first line signs, and a short one is refused."""

import asyncio
from types import SimpleNamespace

import pytest

from kvasir_api.sealed_keys import keys_digest, sealed
from kvasir_runtime.server.continuation_keys import ContinuationKeys, PeerKeySender, parsed

A, B = b"a" * 20, b"b" * 20


def test_the_first_of_a_file_signs(tmp_path):
    path = tmp_path / "keys"
    path.write_bytes(A + b"\n\n" + B + b"\n")
    keys = ContinuationKeys(str(path))
    assert keys.current == ()
    keys.load()
    assert keys.current == (*parsed([A]), *parsed([B]))
    assert {len(key) for key in keys.current} == {32}


def test_keys_that_are_received_take_the_place_of_those_before():
    keys = ContinuationKeys("", instance="i", receives=True)
    assert (keys.current, keys.digest) == ((), "")
    for content in ((b"a" * 32,), (b"b" * 32, b"a" * 32)):
        keys.receive(sealed(content, keys.sealing_key, "i"))
        assert (keys.current, keys.digest) == (content, keys_digest(content))
    with pytest.raises(ValueError, match="not sealed to this process"):
        keys.receive(sealed(content, keys.sealing_key, "another"))
    assert keys.current == content


@pytest.mark.parametrize(
    ("path", "receives", "received_at", "awaited"),
    [
        ("", True, None, {0: True, 119: True, 120: False, 9_999: False}),
        ("", True, 5, {0: True, 5: False, 119: False}),
        ("", True, 500, {119: True, 120: False, 500: False}),
        ("", False, None, {0: False}),
        ("keys", True, None, {0: False}),
    ],
)
def test_keys_of_an_operator_are_awaited_for_two_minutes(path, receives, received_at, awaited):
    now = [1_000.0]
    keys = ContinuationKeys(path, instance="i", receives=receives, clock=lambda: now[0])
    for after_s, want in awaited.items():
        now[0] = 1_000.0 + after_s
        if received_at == after_s:
            keys.receive(sealed((b"a" * 32,), keys.sealing_key, "i"))
        assert keys.awaited == want
    assert bool(keys.current) == (received_at is not None)


@pytest.mark.parametrize(("path", "receives"), [("keys", True), ("", False)])
def test_a_process_with_a_file_or_without_an_operator_receives_none(path, receives):
    keys = ContinuationKeys(path, instance="i", receives=receives)
    assert keys.sealing_key == ""
    with pytest.raises(ValueError, match="takes no keys, or has them from a file"):
        keys.receive("x")


def test_a_key_that_could_be_guessed_is_refused_and_not_shown(tmp_path, caplog):
    path = tmp_path / "keys"
    path.write_bytes(A)
    keys = ContinuationKeys(str(path))
    keys.load()
    path.write_bytes(b"short")
    keys.load()
    assert keys.current == parsed([A])
    assert "fewer than 16 characters" in caplog.text
    assert "short" not in caplog.text


class Client:
    """Of an engine that is ready, or not yet (port None)."""

    def __init__(self, port):
        self.ready = None if port is None else SimpleNamespace(kv_transfer_port=port)
        self.sent = []

    def use_peer_keys(self, keys):
        self.sent.append(keys)


@pytest.mark.parametrize(("port", "want"), [(8002, [2, 1]), (0, []), (None, [])])
def test_keys_are_sent_once_and_again_when_they_change(tmp_path, port, want):
    path, client = tmp_path / "keys", Client(port)
    path.write_text("a key of many characters\nanother key of many characters\n")
    keys = ContinuationKeys(str(path))
    sender = PeerKeySender(keys, client)
    asyncio.run(sender.send())
    assert client.sent == []
    keys.load()
    for _ in range(2):
        asyncio.run(sender.send())
    path.write_text("a third key of characters\n")
    keys.load()
    asyncio.run(sender.send())
    assert [len(sent) for sent in client.sent] == want
