"""Keys that are read again: the real server process lets new ones in and old ones out, and cuts no stream for it."""

import http.client
import json
import os
import signal
from pathlib import Path

import pytest

from fakes import checkpoints
from fakes.api_process import ApiProcess, api_process
from kvasir_api import names

BODY = {"model": "tiny", "prompt": "hello ", "max_tokens": 6}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return checkpoints.write(tmp_path_factory.mktemp("model") / "tiny")


def status(server: ApiProcess, key: str) -> int:
    return server.ask("/v1/models", headers={"authorization": f"Bearer {key}"}).status


def test_keys_are_changed_under_a_stream(model, tmp_path):
    folder, gate = tmp_path / "keys", tmp_path / "gate"
    folder.mkdir()
    (folder / "team").write_text("old-key\n")
    with api_process(model, "--api-key-file", str(folder), faults={"gate": str(gate)}) as server:
        assert [status(server, key) for key in ("old-key", "new-key", "")] == [200, 401, 401]
        streaming = http.client.HTTPConnection(*server.http, timeout=60)
        headers = {"content-type": "application/json", "authorization": "Bearer old-key"}
        streaming.request("POST", "/v1/completions", json.dumps({**BODY, "stream": True}), headers)
        server.until("a stream", lambda: server.state()["running"] == 1)
        (folder / "team").write_text("new-key\n")
        server.until("the new key", lambda: status(server, "new-key") == 200)
        assert status(server, "old-key") == 401
        gate.touch()
        assert streaming.getresponse().read().endswith(b"data: [DONE]\n\n")
        streaming.close()
        assert server.state()["locked"] == ""
        (folder / "team").unlink()
        server.until("locked", lambda: server.state()["locked"])
        assert (status(server, "new-key"), server.state()["phase"]) == (401, "ready")
        (folder / "team").write_text("old-key\nnew-key\n")
        server.until("both", lambda: status(server, "old-key") == status(server, "new-key") == 200)
        for secret in ("old-key", "new-key"):
            assert secret not in server.output()
            assert secret not in json.dumps(server.state())


def test_a_replica_waits_for_its_first_key_and_ends_when_told(model, tmp_path):
    args = ("--api-key-file", str(tmp_path / "keys"), "--pod-revision", "rev")
    with api_process(model, *args, wait="listening") as server:
        server.until("locked", lambda: server.state()["phase"] == "warming")
        assert server.ask("/readyz", ops=True).status == 503
        assert server.state()["locked"] == server.state()["message"] == f"there is no key in {tmp_path}/keys"
        (tmp_path / "keys").write_text("key")
        server.wait_ready()
        assert [status(server, key) for key in ("key", "")] == [200, 401]
        (tmp_path / "keys").unlink()
    with api_process(model, *args, wait="listening") as server:
        server.until("locked", lambda: server.state()["phase"] == "warming")
        server.signal()
        assert server.wait() == 0


def test_a_replica_whose_engine_dies_before_it_is_ready_never_says_ready(model, tmp_path):
    args = ("--api-key-file", str(tmp_path / "keys"), "--pod-revision", "rev")
    with api_process(model, *args, wait="listening") as server:
        server.until("locked", lambda: server.state()["phase"] == "warming")
        os.kill(server.engine_pid, signal.SIGKILL)
        assert server.wait() == 1
        assert "killed by SIGKILL" in server.output()
        assert "Kvasir is ready" not in server.output()


def test_without_a_key_it_does_not_start(model, tmp_path):
    with api_process(model, "--api-key-file", str(tmp_path / "keys"), wait="nothing") as server:
        assert server.wait() == names.EXIT_REFUSED
        assert f"{names.REFUSAL_PREFIX}{names.KEYS_MISSING}there is no key in {tmp_path}/keys" in server.output()
