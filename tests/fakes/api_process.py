"""A real `kvasir serve` process for tests, over the stub engine unless told otherwise; ports are free ones.

It waits with deadlines, never with long sleeps, and its end is certain: leaving the block kills what is left.
"""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai

DEADLINE_S = 90.0
HERE = Path(__file__).parent
STUB = (sys.executable, str(HERE / "serve_stub.py"))
JSON = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class Answer:
    """A response, read to its end."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The decoded body."""
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        """The error object of OpenAI's shape; asserts that it is one."""
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["message"], str)
        return error


class ApiProcess:
    """A running process. http and ops are (host, port)."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log
        self.http = ("", 0)
        self.ops = ("", 0)

    @property
    def base_url(self) -> str:
        """For the openai client."""
        scheme = "https" if "https://" in self.output() else "http"
        return f"{scheme}://{self.http[0]}:{self.http[1]}/v1"

    def strict_openai(self) -> openai.OpenAI:
        """The real client, which refuses what is not of its types and never tries again. Use as a context manager."""
        return openai.OpenAI(base_url=self.base_url, api_key="none", max_retries=0, _strict_response_validation=True)

    @property
    def engine_pid(self) -> int:
        """The child."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0])

    def output(self) -> str:
        """What it wrote to standard error so far."""
        return self.log.read_text(errors="replace")

    def ask(
        self,
        path: str,
        body: Any = None,
        *,
        method: str = "",
        ops: bool = False,
        headers: Mapping[str, str] = JSON,
        timeout_s: float = DEADLINE_S,
    ) -> Answer:
        """One request on a connection of its own; a body that is not bytes is sent as JSON."""
        connection = http.client.HTTPConnection(*(self.ops if ops else self.http), timeout=timeout_s)
        raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        try:
            connection.request(method or ("GET" if body is None else "POST"), path, raw, dict(headers))
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def state(self) -> Any:
        """The /state document."""
        return self.ask("/state", ops=True).json

    def until(self, what: str, holds: Callable[[], Any], timeout_s: float = DEADLINE_S) -> Any:
        """Poll until holds() is true; its value."""
        deadline = time.monotonic() + timeout_s
        while not (value := holds()):
            assert time.monotonic() < deadline, f"not in {timeout_s:g} s: {what}\n{self.output()}"
            time.sleep(0.01)
        return value

    def wait_listening(self) -> None:
        """Until both ports are known and open."""
        found = self.until(
            "listening", lambda: re.search(r"https?://(\S+?):(\d+)\D.*?https?://(\S+?):(\d+)\b", self.text())
        )
        self.http = (found[1], int(found[2]))
        self.ops = (found[3], int(found[4]))

    def text(self) -> str:
        """The output; asserts that the process lives."""
        assert self.process.poll() is None, f"ended with {self.process.returncode}\n{self.output()}"
        return self.output().replace("\n", " ")

    def wait_ready(self) -> None:
        """Until it takes requests."""
        self.until("ready", lambda: self.text() and self.ask("/readyz", ops=True).status == 200)

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Send a signal to the API process alone."""
        self.process.send_signal(number)

    def wait(self) -> int:
        """The exit code."""
        return self.process.wait(DEADLINE_S)


def _end(process: subprocess.Popen[bytes]) -> None:
    """As a person would: ask twice, so that it cleans up, and kill only what does not listen."""
    for _ in range(2):
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(2)
            except subprocess.TimeoutExpired:
                pass
    if process.poll() is None:
        process.kill()
        process.wait(DEADLINE_S)


@contextmanager
def api_process(
    model: Path | str,
    *args: str,
    faults: Mapping[str, Any] | None = None,
    command: Sequence[str] = STUB,
    env: Mapping[str, str] | None = None,
    wait: str = "ready",
) -> Iterator[ApiProcess]:
    """Start one. faults: of the stub engine. wait: ready, listening or nothing."""
    descriptor, name = tempfile.mkstemp(prefix="kvasir-test-", suffix=".log")
    environment = {
        **os.environ,
        "PYTHONPATH": str(HERE.parent),
        "KVASIR_STUB": json.dumps(dict(faults or {})),
        "OMP_NUM_THREADS": "1",
        **(env or {}),
    }
    arguments = [*command, str(model), "--port", "0", "--ops-port", "0", *args]
    with os.fdopen(descriptor, "wb") as sink:
        process = subprocess.Popen(arguments, stderr=sink, stdout=sink, env=environment)
    running = ApiProcess(process, Path(name))
    try:
        if wait in {"ready", "listening"}:
            running.wait_listening()
        if wait == "ready":
            running.wait_ready()
        yield running
    finally:
        _end(process)
        Path(name).unlink(missing_ok=True)
