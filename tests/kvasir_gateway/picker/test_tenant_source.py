"""The picker's reading of the published tenants: what counts, and what keeps it closed."""

import asyncio

import pytest

from fakes.cluster import FakeCluster
from fakes.gateway import grant, tenants_secret, until
from kvasir_api import names
from kvasir_api.tenant_keys import TenantKeys
from kvasir_gateway.picker.tenant_source import TenantSource
from kvasir_kube.errors import KubeError
from kvasir_kube.kinds import SECRET

HOME = names.SYSTEM_NAMESPACE
ONE = TenantKeys(tenants=(grant("t", "k"),))


class Following:
    """A source that runs, and what it handed out last."""

    def __init__(self, cluster, namespace=HOME):
        self.source, self.taken = TenantSource(cluster, namespace, every_s=0.001), []
        self.cluster = cluster

    async def __aenter__(self):
        self.task = asyncio.create_task(self.source.run(self.taken.append))
        return self

    async def __aexit__(self, *_):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def reads(self, keys):
        seen = len(self.taken)
        await until(lambda: keys in self.taken[seen:], "it reads them")

    async def looks_again(self):
        seen = len(self.cluster.reads)
        await until(lambda: len(self.cluster.reads) > seen + 2, "it looks again")


async def test_tenants_are_read_again_and_again():
    cluster = FakeCluster()
    await cluster.put(SECRET, tenants_secret(TenantKeys()))
    async with Following(cluster) as following:
        await following.reads(TenantKeys())
        await cluster.put(SECRET, tenants_secret(ONE))
        await following.reads(ONE)
        await cluster.put(SECRET, tenants_secret(TenantKeys()))
        await following.reads(TenantKeys())
        assert following.source.synced.is_set()


async def test_a_secret_that_somebody_deletes_or_empties_opens_nothing():
    cluster = FakeCluster()
    await cluster.put(SECRET, tenants_secret(ONE))
    async with Following(cluster) as following:
        await following.reads(ONE)
        await cluster.drop(SECRET, HOME, names.GATEWAY_KEYS_SECRET)
        await following.looks_again()
        await cluster.put(SECRET, {**tenants_secret(ONE), "data": None})
        await following.looks_again()
        assert set(following.taken) == {ONE}


@pytest.mark.parametrize("data", [None, {}, {"tenants": ""}])
async def test_a_new_gateway_stays_closed_until_an_operator_has_written(data):
    """It cannot know whether namespaces are closed whose tenants somebody deleted from the Secret."""
    cluster = FakeCluster()
    async with Following(cluster) as following:
        await following.looks_again()
        await cluster.put(SECRET, {**tenants_secret(ONE), "data": data})
        await following.looks_again()
        assert (following.taken, following.source.synced.is_set()) == ([], False)
        await cluster.put(SECRET, tenants_secret(TenantKeys()))
        await following.reads(TenantKeys())
        assert following.source.synced.is_set()


async def test_what_cannot_be_read_keeps_the_gateway_closed(caplog):
    cluster = FakeCluster()
    cluster.errors["get"] = [KubeError("secrets is forbidden", status=403)] * 2
    async with Following(cluster) as following:
        await until(lambda: "forbidden" in caplog.text, "the log has the reason")
        assert not following.source.synced.is_set()
        await cluster.put(SECRET, tenants_secret(TenantKeys()))
        await following.reads(TenantKeys())
        assert following.source.synced.is_set()


async def test_what_is_no_document_changes_nothing(caplog):
    cluster = FakeCluster()
    await cluster.put(SECRET, tenants_secret(ONE))
    async with Following(cluster) as following:
        await following.reads(ONE)
        await cluster.put(SECRET, {**tenants_secret(ONE), "data": {"tenants": "e30x"}})
        await until(lambda: "cannot be read" in caplog.text, "the log has the reason")
        assert set(following.taken) == {ONE}


async def test_a_gateway_without_a_namespace_has_no_tenants():
    async with Following(None, "") as following:
        await asyncio.wait_for(following.source.synced.wait(), 60)
        assert following.taken == []
