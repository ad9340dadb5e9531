"""What the scraper keeps of those that no longer answer."""

import pytest

from fakes import virtual_loop
from fakes.clock import FakeClock
from fakes.cluster import FakeCluster
from fakes.manifests import gateway_pod
from fakes.operator_bench import LoopBench
from fakes.readings import FakeReader
from fakes.virtual_loop import elapse
from kvasir_api import names
from kvasir_api.state import GatewayState, ServiceDemand
from kvasir_kube.kinds import POD
from kvasir_operator.loop.scraper import STALE_S, Scraper
from kvasir_operator.loop.store import Store
from kvasir_operator.observed.settings import RESYNC_S
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


async def test_what_a_gateway_that_leaves_still_holds_counts_while_it_says_so():
    """A request that came just before is reported by nothing else; and one that ends keeps no replica."""
    store, reader, clock = Store(), FakeReader(), FakeClock()
    made = gateway("gw", "10.9.9.1")
    made["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    made["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    store.put(POD, made)
    demand = ServiceDemand(namespace="default", name="tiny", held=3)
    reader.gateways[f"http://10.9.9.1:{names.PORT_GATEWAY_STATE}"] = GatewayState(services=(demand,))
    scraper = Scraper(store, reader, clock=clock)
    await scraper.scrape()
    assert [d.held for d in scraper.demands(SERVICE)] == [3]
    reader.gateways.clear()
    clock.advance(STALE_S + 1)
    await scraper.scrape()
    assert (scraper.demands(SERVICE), scraper.missing_gateways(SERVICE)) == ([], ())


async def test_a_gateway_is_named_by_its_pod_whatever_it_says_of_itself():
    store, reader = Store(), FakeReader()
    store.put(POD, gateway("gw", "10.9.9.1"))
    demand = ServiceDemand(namespace="default", name="tiny", gateway="another", shed=3)
    reader.gateways[f"http://10.9.9.1:{names.PORT_GATEWAY_STATE}"] = GatewayState(services=(demand,))
    scraper = Scraper(store, reader, clock=FakeClock())
    await scraper.scrape()
    assert [(d.gateway, d.shed) for d in scraper.demands(SERVICE)] == [("gw", 3)]


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


def test_gateways_that_run_elsewhere_than_the_watched_namespace_are_read():
    async def story():
        bench = LoopBench(FakeCluster())
        bench.operator = bench.started(namespace="default")
        await bench.put_service(autoscaling={"maxReplicas": 3})
        async with bench.running():
            await elapse(5)
            await bench.cluster.put(POD, gateway_pod("gw", ip="10.9.9.9"))
            demand = ServiceDemand(namespace="default", name="tiny", held=2)
            bench.reader.gateways["http://10.9.9.9:8081"] = GatewayState(services=(demand,))
            await bench.put_pods(1)
            await elapse(3 * RESYNC_S)
            bench.reader.gateways.clear()
            await elapse(30)
            stale = next(c for c in bench.status()["conditions"] if c["type"] == "MetricsStale")
            assert stale["message"] == "no answer from gw"

    virtual_loop.run(story())
