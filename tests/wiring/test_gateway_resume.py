"""Streams whose replica is killed go on at another one, through the real Envoy, picker and relay and real servers."""

import asyncio
import contextlib
import json
import os
import signal

import pytest

from fakes import checkpoints, continuations
from fakes.api_process import api_process
from fakes.checkpoints import Shape
from fakes.continuations import CASES, KEY, REAL, long, same
from fakes.gateway import RunningPod, gateway, until
from kvasir_api import names

pytestmark = pytest.mark.xdist_group("server-continuation")
STREAMS = int(os.environ.get("KVASIR_TEST_STREAMS", "1"))
"""Of each kind; `make test-resume` takes more."""
FIXED = {case: request for case, request in CASES.items() if "seed" in request[1] or request[1].get("temperature") == 0}
"""Kinds whose answers are the same again."""
SLOW = {"step_s": 0.05}
"""Of the stub engine: a stream of 900 tokens cannot end within a test."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Starts one of several that are alike; with faults of its own it has the stub engine."""
    folder = tmp_path_factory.mktemp("resume")
    model = checkpoints.write(folder / "tiny", Shape(seed=4))
    (folder / "keys").write_text(f"{KEY}\n")

    def start(**kind):
        args, env = continuations.options(folder / "keys"), {names.ENV_SERVICE: "default/tiny"}
        return api_process(model, *args, env=env, wait="listening", **kind or {"command": REAL})

    return start


def pod_of(process, name):
    return RunningPod(name, process.http[1], process.ops[1])


class ResumableStream:
    """One stream through the gateway, read in the background. answer: what has come without comments."""

    def __init__(self, front, path, body):
        self.answer = b""
        self.task = asyncio.create_task(self._read(front, path, {"model": "tiny", "stream": True, **body}))

    async def _read(self, front, path, body):
        async with front.client.post(front.url + path, json=body, headers={names.HEADER_RESUME: "1"}) as response:
            assert response.status == 200, await response.read()
            async for chunk in response.content.iter_any():
                assert b"kvasir-continuation" not in chunk
                self.answer += chunk


async def answers(front, process):
    """Whether a request goes to this replica."""
    status, body, _ = await front.post("tiny", messages=[{"role": "user", "content": "x"}], max_tokens=1)
    return status == 200 and json.loads(body)["id"].startswith(f"chatcmpl-{process.state()['instance'][:8]}")


async def stopped_under_streams(front, engine):
    """Streams of every kind, of which one runs at least when their engine stands still."""
    while True:
        begun = [
            (case, ResumableStream(front, path, long(body)))
            for case, (path, body) in FIXED.items()
            for _ in range(STREAMS)
        ]
        await until(
            lambda found=begun: sum(bool(stream.answer) for _, stream in found) > len(found) // 2, "they stream"
        )
        os.kill(engine, signal.SIGSTOP)
        if not all(stream.task.done() for _, stream in begun):
            return begun
        os.kill(engine, signal.SIGCONT)


@pytest.mark.parametrize("victim", ["both", *(["engine"] if STREAMS > 1 else [])])
async def test_streams_of_every_kind_outlive_a_kill(server, victim):
    with contextlib.ExitStack() as stack:
        first, second = [stack.enter_context(server()) for _ in range(2)]
        for process in (first, second):
            process.wait_ready()
        async with gateway(relay=True) as front:
            front.objects.serve("tiny", pod_of(second, "second"))
            await until(lambda: answers(front, second), "the second is known")
            wanted = {case: ResumableStream(front, path, long(body)) for case, (path, body) in FIXED.items()}
            await asyncio.gather(*(stream.task for stream in wanted.values()))
            front.objects.serve("tiny", pod_of(first, "first"))
            await until(lambda: answers(front, first), "all go to the first")
            engine = first.engine_pid
            begun = await stopped_under_streams(front, engine)
            front.objects.serve("tiny", pod_of(first, "first"), pod_of(second, "second"))
            await until(lambda: front.has_ready("tiny", 2), "both are known")
            if victim == "both":
                first.process.kill()
            os.kill(engine, signal.SIGKILL)
            await asyncio.gather(*(stream.task for _, stream in begun))
    for case, stream in begun:
        assert same(stream.answer) == same(wanted[case].answer), case


async def test_an_abort_by_id_reaches_the_replica_at_which_a_stream_went_on(server):
    with contextlib.ExitStack() as stack:
        first, second = [stack.enter_context(server(faults=SLOW)) for _ in range(2)]
        for process in (first, second):
            process.wait_ready()
        async with gateway(relay=True) as front:
            front.objects.serve("tiny", pod_of(first, "first"))
            await until(lambda: answers(front, first), "all go to the first")
            path, body = FIXED["greedy chat"]
            stream = ResumableStream(front, path, body | {"max_tokens": 900})
            await until(lambda: b"\n\n" in stream.answer.partition(b"data: ")[2], "it streams")  # behind a comment too
            answer_id = json.loads(stream.answer.partition(b"data: ")[2].partition(b"\n\n")[0])["id"]
            front.objects.serve("tiny", pod_of(first, "first"), pod_of(second, "second"))
            await until(lambda: front.has_ready("tiny", 2), "both are known")
            first.process.kill()

            async def is_aborted():
                asked = {"request_ids": [answer_id]}
                async with front.client.post(front.url + "/abort_requests", json=asked) as response:
                    return response.status == 200 and await response.json() == {"num_aborted": 1}

            await until(is_aborted, "the second one aborts it")
            await stream.task
    assert b'"code":"request_aborted"' in stream.answer.replace(b": ", b":")
