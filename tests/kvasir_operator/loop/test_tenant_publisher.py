"""The Secret of the gateways follows Tenants and their Secrets, and what cannot be read changes nothing."""

import base64

import pytest

from fakes.clock import FakeClock
from fakes.cluster import FakeCluster
from fakes.stages import SETTINGS
from kvasir_api import names, tenant_keys
from kvasir_kube.errors import ConflictError, KubeError, NotFoundError
from kvasir_kube.kinds import SECRET, TENANT
from kvasir_operator.desired.tenant_keys import MOST_SECRETS
from kvasir_operator.loop.tenant_publisher import DENIALS, REPORTS, TenantPublisher

HOME = "kvasir-system"
FORBIDDEN = KubeError("secrets is forbidden", status=403)


async def installed(*, secret=True):
    cluster = FakeCluster()
    if secret:
        await cluster.put(SECRET, {"metadata": {"namespace": HOME, "name": names.GATEWAY_KEYS_SECRET}})
    return cluster


async def put_keys(cluster, *keys, label="true"):
    content = base64.b64encode("\n".join(keys).encode()).decode()
    metadata = {"namespace": "models", "name": "keys", "labels": {names.LABEL_TENANT_KEYS: label}}
    await cluster.put(SECRET, {"metadata": metadata, "data": {"team": content}})


async def put_tenant(cluster, **spec):
    metadata = {"namespace": "models", "name": "team"}
    await cluster.put(TENANT, {"metadata": metadata, "spec": {"secretName": "keys", **spec}})


def publisher(cluster):
    return TenantPublisher(cluster, SETTINGS, FakeClock())


def published(cluster):
    text = (cluster.stored(SECRET, HOME, names.GATEWAY_KEYS_SECRET).get("data") or {}).get(tenant_keys.ENTRY, "")
    return tenant_keys.decode(base64.b64decode(text)).tenants


def ready(cluster):
    (condition,) = cluster.stored(TENANT, "models", "team")["status"]["conditions"]
    return condition["status"], condition["reason"]


async def test_keys_are_published_as_hashes_and_written_once():
    cluster = await installed()
    await put_keys(cluster, "one", "two")
    await put_tenant(cluster)
    publishing = publisher(cluster)
    await publishing.refresh()
    (grant,) = published(cluster)
    assert [key.sha256 for key in grant.keys] == [tenant_keys.digest(key) for key in (b"one", b"two")]
    assert ready(cluster) == ("True", "KeysPublished")
    assert cluster.stored(TENANT, "models", "team")["status"]["keys"] == 2
    writes = list(cluster.writes)
    await publishing.refresh()
    assert cluster.writes == writes


async def test_without_tenants_gateways_are_told_so_once_and_no_keys_are_read():
    cluster = await installed()
    await put_keys(cluster, "one")
    publishing = publisher(cluster)
    await publishing.refresh()
    assert cluster.stored(SECRET, HOME, names.GATEWAY_KEYS_SECRET)["data"][tenant_keys.ENTRY]
    assert published(cluster) == ()
    writes = list(cluster.writes)
    assert len(writes) == 1
    assert await publishing.refresh() == 0
    assert cluster.writes == writes


async def test_without_tenants_an_older_installation_is_no_error():
    await publisher(await installed(secret=False)).refresh()


async def test_a_tenant_without_the_secret_of_the_gateways_is_an_error():
    cluster = await installed(secret=False)
    await put_tenant(cluster)
    with pytest.raises(NotFoundError):
        await publisher(cluster).refresh()
    assert ready(cluster) == ("False", "KeysUnpublished")


async def test_a_tenant_that_is_deleted_has_no_keys_any_more():
    cluster = await installed()
    await put_keys(cluster, "one")
    await put_tenant(cluster)
    publishing = publisher(cluster)
    await publishing.refresh()
    await cluster.drop(TENANT, "models", "team")
    await publishing.refresh()
    assert published(cluster) == ()


@pytest.mark.parametrize("label", ["false", ""])
async def test_a_secret_without_the_label_is_not_taken_for_keys(label):
    cluster = await installed()
    await put_keys(cluster, "one", label=label)
    await put_tenant(cluster)
    await publisher(cluster).refresh()
    assert published(cluster)[0].keys == ()
    assert ready(cluster) == ("False", "KeysMissing")


async def test_a_right_counts_as_withdrawn_after_several_refusals():
    cluster = await installed()
    await put_keys(cluster, "one")
    await put_tenant(cluster)
    publishing = publisher(cluster)
    await publishing.refresh()
    for number in range(1, DENIALS + 1):
        cluster.errors["get"] = [None, FORBIDDEN]  # the gateways' Secret is read first
        await publishing.refresh()
        assert len(published(cluster)) == (number < DENIALS)
    assert ready(cluster) == ("False", "KeysUnread")
    await publishing.refresh()
    assert (len(published(cluster)), ready(cluster)) == (1, ("True", "KeysPublished"))


async def test_a_tenant_that_may_not_be_read_from_the_start_closes_nothing():
    cluster = await installed()
    await put_tenant(cluster)
    publishing = publisher(cluster)
    for _ in range(DENIALS):
        cluster.errors["get"] = [None, FORBIDDEN]
        await publishing.refresh()
        assert published(cluster) == ()
        assert ready(cluster) == ("False", "KeysUnread")


async def test_an_api_server_that_fails_changes_nothing():
    cluster = await installed()
    await put_keys(cluster, "one")
    await put_tenant(cluster)
    publishing = publisher(cluster)
    await publishing.refresh()
    before = published(cluster)
    cluster.errors["get"] = [None, KubeError("internal", status=500)]
    await publishing.refresh()
    assert published(cluster) == before


async def test_a_tenant_says_that_gateways_could_not_be_given_its_keys():
    """As where a key was revoked, and the Secret is too large or may not be written."""
    cluster = await installed()
    await put_keys(cluster, "one")
    await put_tenant(cluster)
    publishing = publisher(cluster)
    await publishing.refresh()
    await put_keys(cluster, "two")
    cluster.errors["merge"] = [KubeError("Too long: may not be more than 1048576 bytes", status=422)]
    with pytest.raises(KubeError):
        await publishing.refresh()
    assert ready(cluster) == ("False", "KeysUnpublished")
    await publishing.refresh()
    assert ready(cluster) == ("True", "KeysPublished")


async def test_a_status_that_cannot_be_written_holds_up_no_other():
    cluster = await installed()
    await put_keys(cluster, "one")
    await put_tenant(cluster)
    await cluster.put(TENANT, {"metadata": {"namespace": "models", "name": "b"}, "spec": {"secretName": "keys"}})
    cluster.errors["merge"] = [None, KubeError("away", status=503)]  # the gateways' Secret is written first
    await publisher(cluster).refresh()
    assert [bool(cluster.stored(TENANT, "models", name).get("status")) for name in ("team", "b")] == [False, True]


async def test_many_tenants_of_one_namespace_cost_a_bounded_number_of_requests():
    cluster = await installed()
    for number in range(MOST_SECRETS + 20):
        metadata = {"namespace": "models", "name": f"t{number:03}", "creationTimestamp": f"{number:04}"}
        await cluster.put(TENANT, {"metadata": metadata, "spec": {"secretName": f"s{number}"}})
    publishing = publisher(cluster)
    assert await publishing.refresh() == MOST_SECRETS
    assert len(cluster.writes) == REPORTS + 1
    for _ in range(2):
        await publishing.refresh()
    status = cluster.stored(TENANT, "models", f"t{MOST_SECRETS:03}")["status"]
    assert status["conditions"][0]["reason"] == "KeysExceeded"


async def test_what_another_operator_wrote_meanwhile_is_not_overwritten():
    cluster = await installed()
    await put_keys(cluster, "one")
    await put_tenant(cluster)
    cluster.errors["merge"] = [ConflictError("modified", status=409)]
    with pytest.raises(ConflictError):
        await publisher(cluster).refresh()


async def test_what_no_operator_wrote_is_replaced(caplog):
    cluster = await installed()
    await cluster.put(
        SECRET,
        {
            "metadata": {"namespace": HOME, "name": names.GATEWAY_KEYS_SECRET},
            "data": {tenant_keys.ENTRY: base64.b64encode(b"{").decode()},
        },
    )
    await put_keys(cluster, "one")
    await put_tenant(cluster)
    await publisher(cluster).refresh()
    assert len(published(cluster)) == 1
    assert "it is written again" in caplog.text


async def test_no_key_is_logged(caplog):
    caplog.set_level("DEBUG")
    cluster = await installed()
    await put_keys(cluster, "very-secret")
    await put_tenant(cluster)
    await publisher(cluster).refresh()
    assert "very-secret" not in caplog.text
    assert "very-secret" not in str(cluster.stored(SECRET, HOME, names.GATEWAY_KEYS_SECRET))
