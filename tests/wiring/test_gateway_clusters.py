"""The clusters that the real Envoy has from our picker, as Envoy's admin interface shows them."""

import json

import aiohttp
import pytest

from fakes.gateway import RunningPod, gateway, until
from fakes.stub_runtime import stub_runtimes
from kvasir_api import names
from kvasir_gateway.envoy.bootstrap import ADMIN_SOCKET, TYPES
from kvasir_gateway.picker import service_clusters

pytestmark = pytest.mark.xdist_group("gateway-clusters")

POLICIES = "extensions.load_balancing_policies"
HTTP_OPTIONS = "extensions.upstreams.http.v3.HttpProtocolOptions"
LEAST_REQUEST = {
    "name": "envoy.load_balancing_policies.least_request",
    "typed_config": {"@type": f"{TYPES}.{POLICIES}.least_request.v3.LeastRequest"},
}
OVERRIDE_HOST = {
    "name": "envoy.load_balancing_policies.override_host",
    "typed_config": {
        "@type": f"{TYPES}.{POLICIES}.override_host.v3.OverrideHost",
        "override_host_sources": [{"header": names.HEADER_DESTINATION}],
        "fallback_policy": {"policies": [{"typed_extension_config": LEAST_REQUEST}]},
    },
}
CLUSTER = {
    "@type": f"{TYPES}.config.cluster.v3.Cluster",
    "name": "default.a",
    "type": "STATIC",
    "connect_timeout": "1s",
    "circuit_breakers": {
        "thresholds": [
            {"max_connections": 1 << 20, "max_pending_requests": 1 << 20, "max_requests": 1 << 20, "max_retries": 1024}
        ]
    },
    "outlier_detection": {
        "interval": "1s",
        "base_ejection_time": "3s",
        "max_ejection_percent": 50,
        "enforcing_consecutive_5xx": 0,
        "enforcing_success_rate": 0,
        "enforcing_consecutive_gateway_failure": 0,
        "split_external_local_origin_errors": True,
        "consecutive_local_origin_failure": 3,
        "enforcing_consecutive_local_origin_failure": 100,
        "enforcing_local_origin_success_rate": 0,
        "enforcing_failure_percentage": 0,
    },
    "upstream_bind_config": {
        "socket_options": [{"description": "TCP_USER_TIMEOUT", "level": "6", "name": "18", "int_value": "30000"}]
    },
    "upstream_connection_options": {
        "tcp_keepalive": {"keepalive_probes": 4, "keepalive_time": 10, "keepalive_interval": 5}
    },
    "load_assignment": {
        "cluster_name": "default.a",
        "endpoints": [
            {"lb_endpoints": [{"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 9}}}}]}
        ],
    },
    "typed_extension_protocol_options": {
        f"envoy.{HTTP_OPTIONS}": {
            "@type": f"{TYPES}.{HTTP_OPTIONS}",
            "common_http_protocol_options": {"idle_timeout": "4s"},
            "explicit_http_config": {"http_protocol_options": {}},
        }
    },
    "load_balancing_policy": {"policies": [{"typed_extension_config": OVERRIDE_HOST}]},
}


async def clusters(front):
    """By name, each with the time of its last update."""
    connector = aiohttp.UnixConnector(path=str(front.directory / ADMIN_SOCKET))
    url = "http://envoy/config_dump?resource=dynamic_active_clusters"
    async with aiohttp.ClientSession(connector=connector) as session, session.get(url) as response:
        found = (await response.json()).get("configs", ())
    return {one["cluster"]["name"]: one for one in found}


async def groups_of(front, name):
    """Ports of a cluster's addresses, by priority; None where Envoy does not have it."""
    found = (await clusters(front)).get(name)
    return found and [
        [host["endpoint"]["address"]["socket_address"]["port_value"] for host in group.get("lb_endpoints", ())]
        for group in found["cluster"]["load_assignment"]["endpoints"]
    ]


async def test_envoy_reads_every_field_of_a_cluster():
    async with gateway() as front:
        front.objects.serve("a", RunningPod("p", 9, 10))

        async def is_there():
            return "default.a" in await clusters(front)

        await until(is_there, "Envoy has the cluster")
        assert (await clusters(front))["default.a"]["cluster"] == CLUSTER


async def test_a_change_of_one_service_and_a_new_picker_leave_the_clusters_of_others():
    async with stub_runtimes(2) as (one, two), gateway() as front:
        front.objects.serve("stays", one)
        front.objects.serve("changes", one)
        for name in ("stays", "changes"):
            await until(lambda name=name: front.routes(name), name)
        before = await clusters(front)
        front.objects.serve("changes", two)
        front.objects.serve("new", two)
        await until(lambda: front.routes("new"), "new")

        async def has_changed():
            return await groups_of(front, "default.changes") == [[two.http_port]]

        await until(has_changed, "the pod that left is gone")
        after = await clusters(front)
        assert after.keys() == before.keys() | {"default.new"}
        assert after["default.stays"] == before["default.stays"]
        assert after["default.changes"]["version_info"] != before["default.changes"]["version_info"]
        await front.stop_picker()
        front.objects.drop("new")
        front.start_picker()
        await until(front.is_ready, "the next picker is ready")
        assert (await front.post("changes"))[1] == two.whole()
        del after["default.new"]
        assert await clusters(front) == after


@pytest.mark.parametrize("leaving_s", [3600.0, 0.0])
async def test_envoy_keeps_the_last_pod_that_leaves_for_requests_that_are_on_their_way(monkeypatch, leaving_s):
    monkeypatch.setattr(service_clusters, "LEAVING_S", leaving_s)
    async with stub_runtimes(2) as (one, two), gateway() as front:
        left = [[one.http_port]] if leaving_s else []

        async def has(*groups):
            return await groups_of(front, "default.a") == [*groups, *left]

        front.objects.serve("a", one)
        await until(lambda: front.routes("a"), "a")
        front.objects.serve("a")
        await until(lambda: has([]), "the pod takes no new requests")
        status, body, _ = await front.post("a")
        assert (status, json.loads(body)["error"]["code"]) == (503, "no_ready_replica")
        front.objects.serve("a", one)
        await until(lambda: front.routes("a"), "it is back")
        front.objects.serve("a", two)
        await until(lambda: has([two.http_port]), "another pod in its place")
        assert (await front.post("a"))[1] == two.whole()


async def test_an_envoy_that_starts_without_a_picker_says_so_until_one_connects():
    async with stub_runtimes(1) as (pod,), gateway() as front:
        front.objects.serve("a", pod)
        await until(lambda: front.routes("a"), "a")
        await front.stop_picker()
        await front.stop_envoy()
        await front.start_envoy()

        async def code():
            try:
                status, body, _ = await front.post("a")
            except aiohttp.ClientError:
                return False
            return (status, json.loads(body)["error"]["code"]) == (503, "gateway_unavailable")

        await until(code, "Envoy listens without a picker")
        front.start_picker()
        await until(lambda: front.routes("a"), "the next picker brings the clusters")
