"""The guard of the ops port of a real server, called over real HTTP from its own address and from another one."""

import os
import time
from functools import partial

import pytest

from fakes import checkpoints
from fakes.api_process import api_process
from kvasir_api import names
from kvasir_api.ops_tokens import Signer, new_private_key, public_key
from kvasir_kube.state_reader import StateReader

HOST = "127.0.0.2"
"""Calls come from 127.0.0.1, which is another address, as the operator's is to a pod."""
TOKEN = "of those who run a server alone"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return checkpoints.write(tmp_path_factory.mktemp("model") / "tiny")


def signer_of(private):
    return Signer(private, wall=time.time, random=os.urandom)


async def test_a_server_takes_signed_calls_of_the_operator_and_no_others(model, tmp_path):
    keys, private, other = tmp_path / "ops-keys", new_private_key(os.urandom), new_private_key(os.urandom)
    keys.mkdir()
    (keys / "public").write_text("")
    with api_process(model, "--host", HOST, "--ops-key-file", str(keys)) as server:
        base = f"http://{HOST}:{server.ops[1]}"
        sign = partial(signer_of(private).authorization, server.state()["instance"])
        async with StateReader() as reader:
            assert not await reader.drain(base, deadline_s=60.0, on=True, sign=sign), "no key is trusted yet"
            (keys / "public").write_text(f"{public_key(other)}\n{public_key(private)}\n{TOKEN}\n")
            server.until(
                "keys", lambda: server.ask("/drain", ops=True, method="DELETE", headers=auth(sign)).status == 200
            )
            assert server.state()["phase"] == "ready"
            assert await reader.drain(base, deadline_s=60.0, on=True, sign=sign)
            assert server.state()["phase"] == "draining"
            assert not await reader.drain(base, on=False)
            assert not await reader.drain(
                base, deadline_s=60.0, on=False, sign=partial(signer_of(private).authorization, "another")
            )
            assert not await reader.drain(base, deadline_s=60.0, on=False, sign=lambda *_: "Bearer x")
            assert server.state()["phase"] == "draining"
            assert await reader.drain(base, deadline_s=60.0, on=False, sign=sign)
            assert not await reader.introduce(base, {"http://10.0.0.1:8001": ""})
        target = names.TARGET_PREFIXES
        refused = server.ask(target, ops=True)
        assert (refused.status, refused.json) == (401, {"error": "a signed token is required"})
        signed = {"authorization": sign("GET", target)}
        assert server.ask(target, ops=True, headers=signed).json["prefixes"] == []
        assert server.ask(target, ops=True, headers=signed).status == 401, "each token is for one call"
        refused = server.ask("/reset_prefix_cache", ops=True, method="POST")
        assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert refused.json == {"error": "a signed token is required"}
        bearer = {"authorization": f"Bearer {TOKEN}"}
        assert server.ask("/reset_prefix_cache", ops=True, method="POST", headers=bearer).json == {"reset": True}
        assert TOKEN not in server.output()
        assert server.ask("/readyz", ops=True).status == 200
        assert server.ask("/metrics").status == 200


def auth(sign):
    return {"authorization": sign("DELETE", "/drain")}
