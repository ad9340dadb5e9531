"""The server's own request: its fields, and that it is closed in every case."""

import pytest

from fakes.engine_facts import engine_facts
from kvasir_runtime.client import output_check
from kvasir_runtime.client.engine_client import EngineDeadError
from kvasir_runtime.wire import EngineOutput


class OneRequestClient:
    """Answers the request that it gets, if at all."""

    def __init__(self, *, answers=True, dead=False):
        self.answers, self.dead = answers, dead
        self.requests, self.aborted = [], []

    def submit(self, requests, queue):
        if self.dead:
            raise EngineDeadError("gone")
        self.requests += requests
        if self.answers:
            queue.put(0, EngineOutput(request_id=requests[0].request_id, token_ids=(1,), finish_reason="length"))

    def abort(self, request_id):
        self.aborted.append(request_id)


@pytest.mark.parametrize(("head", "pooled"), [("vocabulary", False), ("none", True), ("labels", True)])
async def test_it_requests_one_token_or_one_vector(head, pooled):
    client = OneRequestClient()
    for _ in range(2):
        await output_check.check(client, engine_facts(head=head), (5, 6))
    first, second = client.requests
    assert (first.prompt, first.sampling.max_tokens, first.pooling is not None) == ((5, 6), 1, pooled)
    assert first.request_id != second.request_id
    assert first.salt != second.salt, "it finds nothing in the cache"


async def test_one_that_is_not_answered_is_given_up():
    client = OneRequestClient(answers=False)
    await output_check.check(client, engine_facts(), (5,), limit_s=0.01)
    assert client.aborted == [client.requests[0].request_id]


async def test_a_dead_engine_is_not_asked():
    await output_check.check(OneRequestClient(dead=True), engine_facts(), (5,))
