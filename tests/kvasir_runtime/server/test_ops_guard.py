"""Who may change something by the ops port, by where a call comes from and what it carries."""

import asyncio
import os

import pytest

from fakes.clock import FakeClock
from kvasir_api.ops_tokens import Signer, new_private_key, public_key
from kvasir_runtime.server.json_response import json_response
from kvasir_runtime.server.ops_guard import MAX_BODY_BYTES, OpsGuard, ops_keys, parsed

PRIVATE = new_private_key(os.urandom)
TOKEN = "a token of the file"
POD, OTHER = ("10.0.0.9", 8001), ("10.0.0.1", 40_000)


class Port:
    """The guard of a process called `pod`, before an application that notes what reaches it."""

    def __init__(self, path="", **given):
        self.clock, self.reached, self.keys = FakeClock(), [], ops_keys(str(path))
        self.keys.load()
        self.guard = OpsGuard(self.app, keys=self.keys, instance="pod", wall=self.clock.wall, **given)
        self.signer = Signer(PRIVATE, wall=self.clock.wall, random=os.urandom)

    async def app(self, scope, receive, send):
        message = await receive()
        self.reached.append(message["body"])
        await json_response({})(scope, receive, send)

    async def ask(self, method="POST", target="/drain", *, header="", client=OTHER, server=POD, body=(b"",), length=""):
        """Status of the answer. body: parts; the client is silent behind ..., and gone behind None."""
        path, _, query = target.partition("?")
        sent, parts = [], list(body)
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [
                (name, value.encode())
                for name, value in ((b"authorization", header), (b"content-length", length))
                if value
            ],
            "client": client,
            "server": server,
        }

        async def receive():
            part = parts.pop(0)
            if part is None:
                return {"type": "http.disconnect"}
            if part is ...:
                await asyncio.Future()
            return {"type": "http.request", "body": part, "more_body": bool(parts)}

        async def send(message):
            sent.append(message)

        await self.guard(scope, receive, send)
        return sent[0]["status"]


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text(f"{public_key(PRIVATE)}\n{TOKEN}\n")
    return path


@pytest.mark.parametrize(
    ("client", "server", "status"),
    [
        (("127.0.0.1", 1), POD, 200),
        (("127.9.9.9", 1), ("127.0.0.1", 1), 200),
        (("::1", 1), ("::1", 1), 200),
        (("::ffff:127.0.0.1", 1), ("::", 1), 200),
        (None, None, 403),
        (None, ("127.0.0.1", 1), 403),
        (OTHER, POD, 403),
        (POD, POD, 403),
        (("fe80::1%eth0", 1), POD, 403),
    ],
)
async def test_without_a_key_file_only_calls_over_loopback_are_accepted(client, server, status):
    port = Port()
    assert await port.ask(client=client, server=server) == status
    assert await port.ask("GET", client=OTHER) == 200, "reading is open"
    assert await port.ask("GET", "/prefixes?top=2", client=client, server=server) == status, "but for prompts"
    assert len(port.reached) == 2 * (status == 200) + 1


async def test_with_a_key_file_a_call_needs_a_token_unless_it_comes_from_the_same_place(key_file):
    port = Port(key_file)
    assert await port.ask() == 401
    assert await port.ask(client=POD) == 200
    assert await port.ask(client=("::ffff:10.0.0.9", 1)) == 200
    assert await port.ask(client=None) == 401, "of a connection that was reset"
    assert await port.ask(client=("127.0.0.1", 1)) == 401, "of another pod where all have addresses of loopback"
    assert await port.ask("HEAD") == 200
    assert [await port.ask(method, "/prefixes") for method in ("GET", "HEAD", "OPTIONS")] == [401] * 3
    assert await port.ask("GET", "/prefixes", header=f"Bearer {TOKEN}") == 200
    assert await port.ask(header=f"Bearer {TOKEN}") == 200
    assert await port.ask(header="Bearer another token, as long") == 401


async def test_a_signed_call_is_accepted_once_with_its_query_and_body(key_file):
    port = Port(key_file)
    target = "/peers?address=http%3A%2F%2F10.0.0.2%3A8001"
    header = port.signer.authorization("pod", "POST", target, b"two parts")
    assert await port.ask(target="/peers?address=x", header=header) == 401
    assert await port.ask(target=target, header=header, body=(b"two ", b"part")) == 401
    assert await port.ask(target=target, header=header, body=(b"two ", b"parts")) == 200
    assert port.reached == [b"two parts"]
    assert await port.ask(target=target, header=header, body=(b"two parts",)) == 401


async def test_keys_that_change_count_from_the_next_load_on(key_file):
    port = Port(key_file)
    header = port.signer.authorization("pod", "POST", "/drain")
    key_file.write_text("")
    port.keys.load()
    assert await port.ask(header=header) == 401
    key_file.write_text(public_key(PRIVATE))
    assert await port.ask(header=header) == 401
    port.keys.load()
    assert await port.ask(header=header) == 200
    assert await port.ask(header=f"Bearer {TOKEN}") == 401, "an empty file has no token"


@pytest.mark.parametrize("missing", [True, False])
async def test_a_file_that_is_missing_or_empty_accepts_no_call_from_elsewhere(tmp_path, missing):
    path = tmp_path / "keys"
    if not missing:
        path.write_text("")
    port = Port(path)
    assert await port.ask(header=port.signer.authorization("pod", "POST", "/drain")) == 401
    assert await port.ask(header="Bearer ") == 401
    assert await port.ask(client=POD) == 200


async def test_a_body_is_bounded(key_file):
    port = Port(key_file, body_s=0.01)
    assert await port.ask(client=POD, body=(b"x" * MAX_BODY_BYTES, b"x")) == 413
    assert await port.ask(client=POD, length=str(MAX_BODY_BYTES + 1), body=(...,)) == 413
    assert await port.ask(client=POD, body=(b"abc", ...)) == 408
    assert await port.ask(client=POD, body=(b"abc", None)) == 400
    assert port.reached == []


@pytest.mark.parametrize("keys", [True, False])
async def test_who_may_not_call_is_refused_before_the_body(key_file, keys):
    port = Port(key_file if keys else "")
    signed = port.signer.authorization
    wrong = ["", "Bearer x", signed("pod", "DELETE", "/drain"), signed("another", "POST", "/drain")]
    for header in wrong if keys else [*wrong, signed("pod", "POST", "/drain")]:
        assert await port.ask(header=header, body=(...,)) == (401 if keys else 403)


async def test_a_token_that_was_used_makes_no_body_be_read(key_file):
    port = Port(key_file)
    header = port.signer.authorization("pod", "POST", "/drain")
    assert await port.ask(header=header) == 200
    assert await port.ask(header=header, body=(...,)) == 401


async def test_a_call_that_was_not_sent_whole_does_not_use_its_token(key_file):
    port = Port(key_file)
    header = port.signer.authorization("pod", "POST", "/drain")
    assert await port.ask(header=header, body=(None,)) == 400
    assert await port.ask(header=header) == 200
    assert port.reached == [b""]


def test_a_token_that_could_be_guessed_is_refused():
    with pytest.raises(ValueError, match="fewer than 16 characters"):
        parsed([b"short"])
