"""The gateway's real Envoy with our picker before pods that stream: who gets which request, and what nobody gets."""

import pytest
import pytest_asyncio

from fakes.gateway import StubPod, gateway, until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("gateway-routing")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front():
    async with gateway() as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def pods():
    stubs = [await StubPod(f"pod-{index}").start() for index in range(2)]
    yield stubs
    for stub in stubs:
        await stub.stop()


async def test_the_model_names_the_service(front, pods):
    one, two = pods
    front.objects.serve("alpha", one, model="org/alpha-8b")
    front.objects.serve("beta", two)
    await until(lambda: front.routes("org/alpha-8b"), "alpha")
    await until(lambda: front.routes("beta"), "beta")
    assert (await front.post("org/alpha-8b"))[1] == one.whole()
    assert (await front.post("beta"))[1] == two.whole()
