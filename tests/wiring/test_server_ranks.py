"""The real server with two ranks or stages: streams, grammars, drafts, and its end when a rank is lost."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import openai
import pytest

from fakes import checkpoints
from fakes.api_process import ApiProcess, api_process
from kvasir_runtime.kernels.cpu import library

REAL = (sys.executable, "-m", "kvasir_runtime", "serve")
ARGS = ("--device", "cpu", "--kv-cache-tokens", "8192", "--dtype", "float32", "--speculation", "ngram")
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["n"],
    "additionalProperties": False,
}

pytestmark = pytest.mark.skipif(library.library() is None, reason=f"no C++ kernels: {library.absence()}")


@pytest.fixture(params=["--tensor-parallel-size", "--pipeline-parallel-size"])
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ApiProcess]:
    with api_process(checkpoints.write(tmp_path / "tiny"), *ARGS, request.param, "2", command=REAL) as running:
        yield running


def rank_of(server: ApiProcess) -> int:
    """The process of rank 1, a child of one of the engine's threads."""
    children = Path(f"/proc/{server.engine_pid}/task").glob("*/children")
    (pid,) = {int(pid) for path in children for pid in path.read_text().split()}
    return pid


def test_two_ranks_stream_guide_and_end_together(server: ApiProcess) -> None:
    rank = rank_of(server)
    with openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
        asked = {"model": "tiny", "prompt": "the engine", "max_tokens": 40, "temperature": 0.0}
        whole = client.completions.create(**asked, extra_body={"ignore_eos": True})
        parts = client.completions.create(**asked, extra_body={"ignore_eos": True}, stream=True)
        assert "".join(choice.text for part in parts for choice in part.choices) == whole.choices[0].text
        guided = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "a number"}],
            temperature=0.0,
            max_tokens=60,
            response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}},
        )
        assert 0 <= json.loads(guided.choices[0].message.content or "")["n"] <= 9
        state = server.state()
        assert [(one["rank"], one["node"], one["alive"]) for one in state["ranks"]] == [(0, 0, True), (1, 0, True)]
        assert {(one["stage"], one["shard"]) for one in state["ranks"]} in ({(0, 0), (0, 1)}, {(0, 0), (1, 0)})
        totals = state["totals"]
        assert totals["drafted_tokens"] >= totals["accepted_tokens"] > 0

        def answered(number: int) -> str:
            """One of several at once, each the beginning of a longer text."""
            body = asked | {"prompt": "the engine of " * number}
            return client.completions.create(**body, extra_body={"ignore_eos": True}).choices[0].text

        alone = [answered(number) for number in range(1, 7)]
        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(answered, range(1, 7))) == alone

        def stream_until_one_breaks(_: int) -> None:
            """The first one may have ended before the rank does."""
            while True:
                parts = client.completions.create(
                    **asked | {"max_tokens": 4000}, stream=True, extra_body={"ignore_eos": True}
                )
                for _ in parts:
                    with suppress(ProcessLookupError):
                        os.kill(rank, signal.SIGKILL)

        with ThreadPoolExecutor(3) as pool:
            for broken in [pool.submit(stream_until_one_breaks, number) for number in range(3)]:
                assert isinstance(broken.exception(60), openai.APIError)
    assert server.wait() == 1
    assert "rank 1 was killed by SIGKILL" in server.output()
