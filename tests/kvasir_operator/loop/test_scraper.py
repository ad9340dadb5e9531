"""What the scraper keeps of those that no longer answer."""

import pytest

from fakes.clock import FakeClock
from fakes.manifests import gateway_pod
from fakes.readings import FakeReader
from kvasir_api import names
from kvasir_api.state import GatewayState, ServiceDemand
from kvasir_kube.kinds import POD
from kvasir_operator.loop.scraper import Scraper
from kvasir_operator.loop.store import Store
from kvasir_operator.scaling.window import LOST_S

SERVICE = ("default", "tiny")


def gateway(name, ip, **fields):
    found = gateway_pod(name, ip=ip, **fields)
    found["metadata"] |= {"resourceVersion": "1", "uid": f"uid-{found['metadata']['namespace']}-{name}"}
    return found


async def test_what_a_gateway_held_counts_until_it_is_lost():
    store, reader, clock = Store(), FakeReader(), FakeClock()
    for found in (gateway("gw-a", "10.9.9.1"), gateway("gw-b", "10.9.9.2")):
        store.put(POD, found)
    for ip, held in (("10.9.9.1", 7), ("10.9.9.2", 2)):
        demand = ServiceDemand(namespace="default", name="tiny", held=held)
        reader.gateways[f"http://{ip}:{names.PORT_GATEWAY_STATE}"] = GatewayState(services=(demand,))
    scraper = Scraper(store, reader, clock=clock)
    await scraper.scrape()
    del reader.gateways[f"http://10.9.9.1:{names.PORT_GATEWAY_STATE}"]
    clock.advance(LOST_S)
    await scraper.scrape()
    assert sorted(d.held for d in scraper.demands(SERVICE)) == [2, 7]
    clock.advance(1)
    await scraper.scrape()
    assert [d.held for d in scraper.demands(SERVICE)] == [2]


def labelled(pod):
    """With the labels alone, as all who may create a pod can write them."""
    return {**pod, "spec": {**pod["spec"], "serviceAccountName": "default"}}


def uncontrolled(pod):
    return {**pod, "metadata": {**pod["metadata"], "ownerReferences": []}}


@pytest.mark.parametrize(
    ("made", "believed"),
    [
        (gateway("gw", "10.9.9.1"), True),
        (gateway("gw", "10.9.9.1", namespace="tenant"), False),
        (labelled(gateway("gw", "10.9.9.1")), False),
        (uncontrolled(gateway("gw", "10.9.9.1")), False),
    ],
    ids=["installed", "another namespace", "another account", "no controller"],
)
async def test_only_the_installed_gateway_is_believed(made, believed):
    store, reader, clock = Store(), FakeReader(), FakeClock()
    store.put(POD, made)
    demand = ServiceDemand(namespace="default", name="tiny", held=100)
    reader.gateways[f"http://10.9.9.1:{names.PORT_GATEWAY_STATE}"] = GatewayState(services=(demand,))
    scraper = Scraper(store, reader, clock=clock)
    await scraper.scrape()
    assert bool(scraper.demands(SERVICE)) is believed


async def test_gateways_of_an_installation_elsewhere_are_believed_there():
    store, reader, clock = Store(), FakeReader(), FakeClock()
    store.put(POD, gateway("gw", "10.9.9.1", namespace="team"))
    reader.gateways[f"http://10.9.9.1:{names.PORT_GATEWAY_STATE}"] = GatewayState(
        services=(ServiceDemand(namespace="default", name="tiny", held=1),)
    )
    scraper = Scraper(store, reader, clock=clock, system_namespace="team")
    await scraper.scrape()
    assert scraper.demands(SERVICE)
