"""Real servers as the nodes of one model, on loopback: they answer as one process, and end together with the reason."""

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fakes import checkpoints
from fakes.api_process import ApiProcess, api_process
from fakes.checkpoints import Shape
from kvasir_runtime.kernels.cpu import library

REAL = (sys.executable, "-m", "kvasir_runtime", "serve")
ARGS = ("--device", "cpu", "--kv-cache-tokens", "8192", "--dtype", "float32", "--served-model-name", "tiny")
ADDRESS = "127.91.7.4"
"""Of this file alone, so that no other process has the port between its choice and its use."""
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["n"],
    "additionalProperties": False,
}

pytestmark = pytest.mark.skipif(library.library() is None, reason=f"no C++ kernels: {library.absence()}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "key").write_text("a key that only nodes of tests have\n")
    return checkpoints.write(tmp_path / "tiny", Shape(std=0.2))


@contextmanager
def nodes_of(
    folder: Path, ranks: int, option: str = "--tensor-parallel-size"
) -> Iterator[tuple[ApiProcess, ApiProcess]]:
    """The processes of node 0 and node 1, begun. Node 0 waits for the other one before that begins."""
    with socket.create_server((ADDRESS, 0)) as probe:
        port = str(probe.getsockname()[1])
    shared = ("--nnodes", "2", option, str(ranks), "--master-addr", ADDRESS, "--master-port", port)
    args = (*ARGS, *shared, "--node-key-file", str(folder.parent / "key"))
    first = api_process(folder, *args, command=REAL, wait="listening")
    second = api_process(folder, *args, "--node-rank", "1", command=REAL, wait="listening")
    with first as leader:
        leader.until("it waits", lambda: "waiting for nodes 1 of 2" in leader.state()["message"])
        assert [alive for *_, alive in ranks_of(leader)] == [True] * (ranks // 2) + [False] * (ranks // 2)
        with second as follower:
            yield leader, follower


def answers(server: ApiProcess) -> list[Any]:
    """Greedy, drawn with a seed, one whose beginning is cached, longer than a step, and one by a grammar."""
    asked: dict[str, Any] = {"model": "tiny", "max_tokens": 24, "ignore_eos": True}
    bodies = [
        {**asked, "prompt": "the engine " * 40, "temperature": 0.0},
        {**asked, "prompt": "the engine " * 40 + "and more", "temperature": 0.9, "top_p": 0.8, "seed": 7},
        {**asked, "prompt": "words " * 700, "temperature": 0.0, "n": 2},
    ]
    found = [[choice["text"] for choice in server.ask("/v1/completions", body).json["choices"]] for body in bodies]
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "a number"}], "temperature": 0.0}
    guided = server.ask("/v1/chat/completions", {**chat, "max_tokens": 60, "response_format": schema}).json
    content = guided["choices"][0]["message"]["content"]
    assert 0 <= json.loads(content)["n"] <= 9
    return [*found, content]


def ranks_of(server: ApiProcess) -> list[tuple[int, int, bool]]:
    """Rank, node and whether it has joined."""
    return [(one["rank"], one["node"], one["alive"]) for one in server.state()["ranks"]]


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in found for child in path.read_text().split()]


def test_four_processes_on_two_nodes_answer_as_one_and_end_together(folder: Path) -> None:
    with api_process(folder, *ARGS, command=REAL) as alone:
        expected = answers(alone)
    with nodes_of(folder, 4) as (leader, follower):
        leader.wait_ready()
        assert answers(leader) == expected
        assert ranks_of(leader) == [(0, 0, True), (1, 0, True), (2, 1, True), (3, 1, True)]
        assert all(one["weights_bytes"] > 0 and one["kv_bytes"] > 0 for one in leader.state()["ranks"])
        assert ranks_of(follower) == [(2, 1, True), (3, 1, True)]
        state = follower.state()
        assert (state["phase"], state["message"]) == ("warming", "computing for node 0")
        assert [follower.ask(path, ops=True).status for path in ("/startupz", "/readyz")] == [200, 200]
        assert follower.ask("/health").status == 503
        assert follower.ask("/v1/models").status == 200
        assert follower.ask("/v1/completions", {"model": "tiny", "prompt": "hello"}).status == 503
        (rank,) = children(follower.engine_pid)
        os.kill(rank, signal.SIGKILL)
        assert (leader.wait(), follower.wait()) == (1, 1)
        assert "rank 3 was killed by SIGKILL" in leader.output()
        assert "rank 3 was killed by SIGKILL" in follower.output()


def test_a_node_that_is_stopped_ends_the_model_and_is_ended(folder: Path) -> None:
    """Or it would stay as it is, and node 0 would wait for it at each further start."""
    with nodes_of(folder, 2) as (leader, follower):
        leader.wait_ready()
        os.kill(follower.engine_pid, signal.SIGSTOP)
        assert leader.wait() == 1
        assert "node 1 at 127.0.0.1 was silent for 1.75 s" in leader.output()
        assert follower.wait() == 1
        assert "the engine process was stopped for 10 s" in follower.output()


@pytest.mark.parametrize("option", ["--tensor-parallel-size", "--pipeline-parallel-size"])
def test_a_node_that_is_told_to_end_computes_until_node_0_has_drained(folder: Path, option: str) -> None:
    """As when the pod of one is evicted: what its replica answers is finished."""
    with nodes_of(folder, 2, option) as (leader, follower):
        leader.wait_ready()
        follower.signal()
        follower.until("told", lambda: "this node ends with node 0" in follower.text())
        body = {"model": "tiny", "prompt": "the engine", "max_tokens": 24, "ignore_eos": True}
        assert leader.ask("/v1/completions", body).json["choices"][0]["finish_reason"] == "length"
        leader.signal()
        assert leader.wait() == 0
        assert follower.wait() == 1
