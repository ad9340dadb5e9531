"""Long work is done in turn between clients, whatever one of them sends; short work waits for none of it."""

import asyncio
import json
import threading

import pytest
from starlette.requests import Request

from kvasir_api import tenants
from kvasir_api.options import ServeOptions
from kvasir_runtime.server.api.responses import routes
from kvasir_runtime.server.api.serving import client_of
from kvasir_runtime.server.auth import ApiKeys
from kvasir_runtime.server.middleware import Middleware
from kvasir_runtime.server.senders import Senders
from kvasir_runtime.server.worker_threads import LONG_BYTES, LONG_THREADS, WorkerThreads

KEY = tenants.salt_of_key(b"good").hex()


def test_short_work_passes_long_work():
    async def served() -> str:
        workers, done = WorkerThreads(), threading.Event()
        long = [
            asyncio.create_task(workers.run(done.wait, 30.0, size_bytes=LONG_BYTES, client=str(number)))
            for number in range(LONG_THREADS + 3)
        ]
        await asyncio.sleep(0)
        answer = await workers.run(str.upper, "short", size_bytes=10, client="0")
        assert not any(task.done() for task in long)
        done.set()
        assert all(await asyncio.gather(*long))
        return answer

    assert asyncio.run(served()) == "SHORT"


@pytest.mark.parametrize(
    ("keys", "headers", "trusted", "want"),
    [
        (("good",), {"authorization": "Bearer good"}, "", KEY),
        (("good",), {"authorization": "Bearer junk 1", "x-api-key": "good"}, "", KEY),
        (("good",), {"authorization": "junk 2", "x-api-key": "good", "x-tenant": "a"}, "", KEY),
        (("good",), {"authorization": "Bearer junk 3"}, "", None),
        ((), {"authorization": "Bearer junk 4", "x-api-key": "junk 5", "x-tenant": "a"}, "", "1.2.3.4"),
        (("good",), {"authorization": "Bearer good"}, "x-tenant", KEY),
        (("good",), {"authorization": "Bearer good", "x-tenant": "a"}, "x-tenant", tenants.salt_of_name("a").hex()),
        ((), {"x-tenant": "b"}, "x-tenant", tenants.salt_of_name("b").hex()),
        ((), {}, "x-tenant", "1.2.3.4"),
    ],
)
def test_a_client_is_the_tenant_or_its_address(keys, headers, trusted, want):
    """Nobody gets more turns by headers that nothing looks at."""
    found, accepted = [], ApiKeys(keys)
    senders = Senders(ServeOptions(model="m", tenant_header=trusted), accepted)

    async def app(scope, receive, send):
        request = Request(scope)
        found.append(client_of(request, senders.identity(request)))

    async def ignored(*_):
        return {}

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "client": ("1.2.3.4", 5)}
    scope["headers"] = [(name.encode(), value.encode()) for name, value in headers.items()]
    middleware = Middleware(app, accepts_key=accepted.accepts, snapshot=ignored, measure=lambda *_: None)
    asyncio.run(middleware(scope, ignored, ignored))
    assert found == ([] if want is None else [want])


@pytest.mark.parametrize(
    ("raw", "is_long"),
    [
        ('{"previous_response_id": "resp_a"}', True),
        ('{"previous\\u005Fresponse_id" :\n "resp_a"}', True),
        ('{"previous_response_id": null, "previous_response_id": "resp_a"}', True),
        ('{"previous_response_id": null}', False),
        ('{"previous_response_id"  :  null}', False),
        (json.dumps({"input": 'a "previous_response_id": "b"'}), False),
        ('{"input": "hi"}', False),
    ],
)
def test_a_response_that_goes_on_is_long_work(raw, is_long):
    assert routes._size(raw.encode()) == (LONG_BYTES if is_long else len(raw))
