"""What the scraper keeps of those that no longer answer."""

from fakes.clock import FakeClock
from fakes.manifests import pod
from fakes.readings import FakeReader
from kvasir_api import names
from kvasir_api.state import GatewayState, ServiceDemand
from kvasir_kube.kinds import POD
from kvasir_operator.loop.scraper import Scraper
from kvasir_operator.loop.store import Store
from kvasir_operator.scaling.window import LOST_S

SERVICE = ("default", "tiny")


def gateway(name, ip):
    found = pod(name, ready=True, ip=ip)
    found["metadata"]["resourceVersion"] = "1"
    found["metadata"]["labels"] = {names.LABEL_NAME: names.GATEWAY, names.LABEL_PART_OF: names.PART_OF}
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
