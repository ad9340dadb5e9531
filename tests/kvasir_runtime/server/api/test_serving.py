"""Requests that are being prepared have places in the queue, too, each tenant its share of them."""

import asyncio
from types import SimpleNamespace

import pytest
from starlette.requests import Request

from kvasir_api.options import ServeOptions
from kvasir_api.state import RuntimeState
from kvasir_runtime.client.open_sequences import TenantLoad
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.server.api.serving import admit
from kvasir_runtime.server.app_state import AppState

PLACES = 8


def full_of(tenant):
    """A replica whose places all belong to one tenant."""
    made = AppState(
        options=ServeOptions(model="m", tenant_header="x-tenant", max_waiting=PLACES - 2), names=("m",), created=0
    )
    client = SimpleNamespace(
        state=RuntimeState(running=2, waiting=6),
        num_inflight=PLACES,
        load_by_tenant={tenant: TenantLoad(PLACES, 1.0)},
    )
    made.served_model = SimpleNamespace(client=client, max_sequences=2)
    made.lifecycle.advance("ready")
    return made


def sent_by(tenant, received):
    async def receive():
        await received.wait()
        return {"type": "http.request", "body": b"{}", "more_body": False}

    scope = {"type": "http", "method": "POST", "headers": [(b"x-tenant", tenant.encode())], "state": {}}
    return Request(scope, receive)


@pytest.mark.parametrize(("tenant", "num_prepared"), [("another", PLACES // 2), ("full", 0)])
async def test_a_burst_of_one_tenant_is_prepared_up_to_its_share(tenant, num_prepared):
    app_state, received, prepared = full_of("full"), asyncio.Event(), asyncio.Event()
    begun = []

    async def work(raw, _):
        begun.append(raw)
        await prepared.wait()

    def one():
        return asyncio.create_task(admit(sent_by(tenant, received), app_state, work, lambda *_: 1))

    tasks = [one() for _ in range(100)]
    await asyncio.sleep(0)
    received.set()
    for _ in range(10_000):
        if len(begun) + sum(task.done() for task in tasks) == len(tasks):
            break
        await asyncio.sleep(0)
    assert len(begun) == num_prepared
    prepared.set()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(one, Refused) for one in ended) == 100 - num_prepared
    assert not app_state.preparing
    assert app_state.num_active == num_prepared
