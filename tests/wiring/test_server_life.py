"""The life of the real server process: start, progress, failures, drain, signals, a dead engine."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from fakes import checkpoints, hub
from fakes.api_process import STUB, ApiProcess, api_process
from kvasir_api.names import REFUSAL_PREFIX
from kvasir_runtime.server.lifecycle import STRAGGLER_S

INVALID = r"model_output_invalid: the output of (\d+) requests in a row was not finite"
BODY = {"model": "tiny", "prompt": "hello ", "max_tokens": 6}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return checkpoints.write(tmp_path_factory.mktemp("model") / "tiny")


class Stream:
    """A streamed request on a thread of its own, read to its end."""

    def __init__(self, server: ApiProcess, **fields) -> None:
        self._connection = http.client.HTTPConnection(*server.http, timeout=60)
        body = json.dumps({**BODY, "stream": True, **fields})
        self._connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        self.body = b""
        self.status = 0
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):  # a process that stops at once may cut it
            response = self._connection.getresponse()
            self.status = response.status
            self.body = response.read()

    def join(self) -> bytes:
        self._thread.join(60)
        self._connection.close()
        return self.body


@contextlib.contextmanager
def waiting_probe(server: ApiProcess) -> Iterator[http.client.HTTPConnection]:
    """A startup probe that the server has read before what came later: the model loads."""
    with contextlib.closing(http.client.HTTPConnection(*server.ops, timeout=60)) as connection:
        connection.request("GET", "/startupz?wait_s=60")
        server.until("loading", lambda: server.state()["phase"] == "loading")
        yield connection


def test_ports_answer_while_the_model_loads(model, tmp_path):
    gate = tmp_path / "loaded"
    with api_process(model, faults={"load_gate": str(gate)}, wait="listening") as server:
        server.until("progress", lambda: server.ask("/startupz", ops=True).json["phase"] == "loading")
        startup = server.ask("/startupz", ops=True)
        assert (startup.status, startup.json["progress_fraction"], startup.json["eta_s"]) == (503, 0.25, 3.0)
        assert server.ask("/readyz", ops=True).status == 503
        assert server.ask("/livez", ops=True).status == 200
        assert server.ask("/health").status == 503
        assert server.state()["phase"] == "loading"
        assert server.ask("/v1/models").json["data"][0]["id"] == "tiny"
        refused = server.ask("/v1/completions", BODY)
        assert (refused.status, refused.error["code"]) == (503, "model_loading")
        assert int(refused.headers["retry-after"]) == 3
        gate.touch()
        server.wait_ready()
        assert server.ask("/startupz", ops=True).status == 200
        assert server.ask("/v1/completions", BODY).status == 200
        for fact in ("stub, none kernels, float32", "8,192 tokens", "1.0 MiB", "2.00 requests of 4,096 tokens"):
            assert fact in server.output()


def test_a_startup_probe_that_waits_is_answered_when_the_model_is_loaded(model, tmp_path):
    gate = tmp_path / "loaded"
    with api_process(model, faults={"load_gate": str(gate)}, wait="listening") as server:
        early = server.ask("/startupz?wait_s=0.2", ops=True)
        assert early.status == 503
        with ThreadPoolExecutor() as pool:
            held = pool.submit(server.ask, "/startupz?wait_s=60", ops=True)
            server.until("progress", lambda: server.ask("/startupz", ops=True).json["phase"] == "loading")
            assert not held.done()
            gate.touch()
            assert held.result(timeout=60).status == 200
        assert server.ask("/startupz?wait_s=-1", ops=True).status == 422


def test_a_startup_probe_that_waits_does_not_hold_up_a_process_that_ends(model, tmp_path):
    with api_process(model, faults={"load_gate": str(tmp_path / "never")}, wait="listening") as server:
        with waiting_probe(server) as held:
            server.signal(signal.SIGTERM)
            assert held.getresponse().status == 503
        assert server.wait() == 0


@pytest.mark.parametrize(
    ("says", "incurable", "reason"),
    [
        ("NoDevice: no NVIDIA driver is here", True, "NoDevice"),
        ("DriverTooOld: the NVIDIA driver 550.90.07 runs CUDA 12.4", True, "DriverTooOld"),
        ("OutOfDeviceMemory: CUDA out of memory", True, "OutOfDeviceMemory"),
        ("TooSmall: weights 15 GiB against 4 GiB usable", True, "TooSmall"),
        ("config.json is missing", True, "ModelLoadFailed"),
        ("DeviceFault: Xid 79: it is gone", False, "DeviceFailed"),
        ("it happened", False, ""),
    ],
)
def test_a_startup_probe_that_waits_gets_the_reason_of_a_failed_start(model, tmp_path, says, incurable, reason):
    gate = tmp_path / "failed"
    faults = {"load_gate": str(gate), "fail": says, "incurable": incurable}
    with api_process(model, faults=faults, wait="listening") as server:
        with waiting_probe(server) as held:
            gate.touch()
            answer = held.getresponse()
            found = json.loads(answer.read())
        assert (answer.status, found["reason"], found["message"]) == (503, reason, says)
        assert server.wait() == (3 if reason == "DeviceFailed" else 1)


def test_a_model_from_the_hub_is_fetched_and_the_seconds_are_told(model, tmp_path):
    files = {path.name: path.read_bytes() for path in model.iterdir()}
    with (
        hub.serving(files=files, held=True) as found,
        # A log of records says at once that the ports are open, not only when the model was found.
        api_process(Path("org/name"), "--log-format", "json", env=found.env(tmp_path), wait="listening") as server,
    ):
        server.until("weights asked for", lambda: any("model.safetensors" in path for path in found.of("GET")))
        asked = time.monotonic()
        assert server.state()["phase"] == "starting"
        least = time.monotonic() - asked
        found.open.set()
        server.wait_ready()
        assert server.ask("/v1/models").json["data"][0]["id"] == "name"
        assert server.state()["start"]["weights_s"] > least


def test_a_shard_with_a_wrong_checksum_is_never_served(tmp_path):
    folder = checkpoints.write(tmp_path / "tiny", num_shards=3)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    with hub.serving("damaged always", files) as found:
        found.weights = "model-00002-of-00003.safetensors"
        with api_process(Path("org/name"), env=found.env(tmp_path), wait="nothing") as server:
            assert server.wait() == 1
            _assert_one_error(server.output(), "another checksum of model-00002-of-00003.safetensors than was stated")


def test_told_to_stop_while_loading_it_stops(model, tmp_path):
    with api_process(model, faults={"load_gate": str(tmp_path / "never")}, wait="listening") as server:
        server.until("progress", lambda: server.state()["phase"] == "loading")
        server.signal()
        assert server.wait() == 0


def test_a_damaged_model_is_one_line_and_code_1(tmp_path):
    folder = checkpoints.write(tmp_path / "tiny")
    (folder / "tokenizer.json").write_bytes(b"{}")
    with api_process(folder, wait="nothing") as server:
        assert server.wait() == 1
        _assert_one_error(server.output(), "tokenizer.json is not a tokenizer")


@pytest.mark.parametrize(("name", "says"), [("/no/such/model", "does not exist"), ("no-such-org/model", "hub")])
def test_a_missing_model_is_one_line_and_code_1(name, says):
    with api_process(Path(name), env={"HF_HUB_OFFLINE": "1"}, wait="nothing") as server:
        assert server.wait() == 1
        _assert_one_error(server.output(), says)


@pytest.mark.parametrize(("incurable", "prefix"), [(True, REFUSAL_PREFIX), (False, "kvasir failed: ")])
def test_an_engine_that_cannot_start_says_whether_a_retry_could_help(model, incurable, prefix):
    says = "weights are damaged: tensor x has no end"
    with api_process(model, faults={"fail": says, "incurable": incurable}, wait="nothing") as server:
        assert server.wait() == 1
        _assert_one_error(server.output(), f"{prefix}{says}")


def _assert_one_error(output: str, says: str) -> None:
    errors = [line for line in output.splitlines() if line.startswith(("kvasir failed: ", REFUSAL_PREFIX))]
    assert len(errors) == 1, output
    assert says in errors[0]
    assert "Traceback" not in output


@pytest.mark.parametrize("flag", ["--port", "--ops-port"])
def test_a_taken_port_is_one_line_and_quick(model, flag):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with api_process(model, flag, str(port), wait="nothing") as server:
            assert server.wait() == 1
            _assert_one_error(server.output(), f"127.0.0.1:{port}: Address already in use (choose another with {flag})")


def test_sigterm_finishes_what_runs_and_refuses_the_rest(model, tmp_path):
    gate = tmp_path / "gate"
    with api_process(model, faults={"gate": str(gate)}) as server:
        running = Stream(server)
        server.until("it to run", lambda: server.state()["running"] == 1)
        server.signal()
        server.until("draining", lambda: server.state()["phase"] == "draining")
        assert server.ask("/readyz", ops=True).status == 503
        assert server.ask("/livez", ops=True).status == 200
        refused = server.ask("/v1/completions", BODY)
        assert (refused.status, refused.error["code"], refused.headers["retry-after"]) == (503, "draining", "1")
        assert server.ask("/drain", ops=True, method="DELETE").status == 409
        gate.touch()
        assert running.join().endswith(b"data: [DONE]\n\n")
        assert server.wait() == 0


def test_a_replica_that_is_told_to_end_serves_those_who_do_not_know_it_yet(model):
    """It ends when nothing runs after STRAGGLER_S: a request that came later than that says nothing."""
    status = 0
    while status != 200:
        with api_process(model, "--pod-revision", "abc", "--drain-timeout", "600") as server:
            told = time.monotonic()
            server.signal()
            with contextlib.suppress(OSError, http.client.HTTPException):  # it has ended
                server.until("draining", lambda: server.state()["phase"] == "draining")
                assert server.ask("/readyz", ops=True).status == 503
                status = server.ask("/v1/completions", BODY).status
            assert status == 200 or time.monotonic() - told >= STRAGGLER_S
            assert server.wait() == 0


def test_the_drain_has_an_end(model, tmp_path):
    with api_process(model, "--drain-timeout", "0", faults={"gate": str(tmp_path / "never")}) as server:
        running = Stream(server)
        server.until("it to run", lambda: server.state()["running"] == 1)
        server.signal()
        body = running.join()
        assert running.status == 503
        assert json.loads(body)["error"]["message"] == "the server is shutting down"
        assert server.wait() == 0


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_stops_at_once(model, tmp_path, second):
    with api_process(model, faults={"gate": str(tmp_path / "never")}) as server:
        running = Stream(server)
        server.until("it to run", lambda: server.state()["running"] == 1)
        engine = server.engine_pid
        server.signal(signal.SIGINT)
        server.until("draining", lambda: server.state()["phase"] == "draining")
        server.signal(second)
        assert server.wait() == 1
        running.join()
        assert not Path(f"/proc/{engine}").exists()


def test_the_control_plane_can_drain_and_take_it_back(model):
    with api_process(model) as server:
        assert server.ask("/drain", ops=True, method="POST").json["phase"] == "draining"
        assert server.ask("/readyz", ops=True).status == 503
        assert server.state()["phase"] == "draining"
        assert server.ask("/v1/completions", BODY).status == 200, "gateways have not read it yet"
        assert server.ask("/drain", ops=True, method="DELETE").json["phase"] == "ready"
        assert server.ask("/readyz", ops=True).status == 200
        assert server.ask("/drain").status == 404, "clients cannot drain"


def test_a_killed_engine_is_an_error_for_everybody_and_the_end(model, tmp_path):
    gate = tmp_path / "gate"
    gate.touch()
    with api_process(model, faults={"gate": str(gate), "step_s": 0.05}) as server:
        under_way = Stream(server, max_tokens=4000)
        server.until("it to stream", lambda: 'first_token_seconds_count{model_name="tiny"} 1.0' in _metrics(server))
        gate.unlink()
        queued = Stream(server)
        server.until("both to run", lambda: server.state()["running"] == 2)
        os.kill(server.engine_pid, signal.SIGKILL)
        cut = under_way.join()
        assert b'"code":"engine_failed"' in cut
        assert b"[DONE]" not in cut
        assert under_way.status == 200
        assert json.loads(queued.join())["error"]["code"] == "engine_failed"
        assert queued.status == 503
        assert server.wait() == 1
        _assert_one_error(server.output(), "killed by SIGKILL")


def test_a_replica_whose_engine_is_dead_is_never_ready(model, tmp_path):
    with api_process(model, faults={"gate": str(tmp_path / "never")}) as server:
        open_stream = Stream(server)
        server.until("it to run", lambda: server.state()["running"] == 1)
        os.kill(server.engine_pid, signal.SIGKILL)
        seen: list[tuple[int, str]] = []
        while server.process.poll() is None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                seen.append((server.ask("/readyz", ops=True).status, server.state()["phase"]))
        first_death = next((number for number, (status, _) in enumerate(seen) if status == 503), len(seen))
        assert all(answer == (503, "draining") for answer in seen[first_death + 1 :])
        assert server.wait() == 1
        open_stream.join()


def test_outputs_that_are_invalid_in_a_row_end_readiness_until_one_is_valid(model, tmp_path):
    broken, log = tmp_path / "broken", tmp_path / "log"
    broken.touch()
    with api_process(model, faults={"invalid": str(broken), "log": str(log)}) as server:
        for status in (200, 200, 503):
            answer = server.ask("/v1/completions", BODY)
            assert (answer.status, answer.error["code"]) == (500, "model_output_invalid")
            assert server.ask("/readyz", ops=True).status == status
        found = [server.ask("/readyz", ops=True).json["reason"], server.state()["message"]]
        counts = [int(re.fullmatch(INVALID, words)[1]) for words in found]
        assert 3 <= counts[0] <= counts[1], "a check that fails is counted too"
        assert server.ask("/livez", ops=True).status == 200
        server.until("two checks that fail", lambda: log.read_text().count('"request_id":"check-') >= 2)
        assert server.ask("/readyz", ops=True).status == 503
        broken.unlink()
        server.until("ready", lambda: server.ask("/readyz", ops=True).status == 200)
        assert server.ask("/v1/completions", BODY).status == 200


def _metrics(server: ApiProcess) -> str:
    return server.ask("/metrics").body.decode()


def test_the_openai_client_sees_an_error_inside_a_stream(model, tmp_path):
    gate = tmp_path / "gate"
    gate.touch()
    with (
        api_process(model, faults={"gate": str(gate), "step_s": 0.05}) as server,
        openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client,
    ):
        stream = client.completions.create(model="tiny", prompt="x", max_tokens=4000, stream=True)
        next(stream)
        os.kill(server.engine_pid, signal.SIGKILL)
        with pytest.raises(openai.APIError):
            for _ in stream:
                pass


def test_the_engine_ends_with_its_parent(model):
    with api_process(model) as server:
        engine = server.engine_pid
        server.process.kill()
        deadline = time.monotonic() + 60
        while Path(f"/proc/{engine}").exists():
            assert time.monotonic() < deadline, "an orphan is left"
            time.sleep(0.01)


def test_wrong_options_are_said_with_their_flag(model):
    for args, says in ((("--max-model-len", "-5"), "--max-model-len"), (("--device", "tpu"), "--device")):
        with api_process(model, *args, command=STUB, wait="nothing") as server:
            assert server.wait() == 2
            assert says in server.output()
            assert "Traceback" not in server.output()
