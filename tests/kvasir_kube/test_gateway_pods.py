"""Which pods are gateways, and how a request's choice is read from the one that made it."""

from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from fakes.pod_owners import controller
from kvasir_api import names
from kvasir_kube import gateway_pods, http_sites, kinds
from kvasir_kube.client import Client, configuration
from kvasir_kube.errors import KubeError

SYSTEM = names.SYSTEM_NAMESPACE
KUBECONFIG = """
{{"apiVersion": "v1", "kind": "Config", "current-context": "c",
 "clusters": [{{"name": "c", "cluster": {{"server": "{server}"}}}}],
 "contexts": [{{"name": "c", "context": {{"cluster": "c", "user": ""}}}}]}}
"""
FOUND = {"record": {"request_id": "a/b"}, "explanation": "why\n"}


def gateway_pod(name, ip, *, port=9081, account=names.GATEWAY):
    metadata = {
        "namespace": SYSTEM,
        "name": name,
        "labels": {names.LABEL_NAME: names.GATEWAY},
        "ownerReferences": [controller(kinds.REPLICA_SET, "r")],
    }
    ports = [{"name": "http", "containerPort": 1}, {"name": "state", "containerPort": port}]
    spec = {"serviceAccountName": account, "containers": [{"name": "picker", "ports": ports}]}
    return {"metadata": metadata, "spec": spec, "status": {"podIP": ip}}


@asynccontextmanager
async def listening(handle):
    """The port of a server whose every answer is `handle(request)`."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await http_sites.TcpSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def cluster_of(tmp_path, pods, proxied, asked):
    """An API server with these pods, before them what answers by pod name; asked: the paths that were proxied."""

    async def handle(request):
        if "/proxy/" not in request.path:
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": pods})
        asked.append(request.raw_path)
        status, document = proxied[request.path.split("/")[6].partition(":")[0]]
        return web.json_response(document, status=status)

    async with listening(handle) as port:
        (tmp_path / "kubeconfig").write_text(KUBECONFIG.format(server=f"http://127.0.0.1:{port}"))
        async with Client(await configuration(str(tmp_path / "kubeconfig"))) as client:
            yield client


async def test_the_gateway_that_made_the_choice_is_found_through_the_api_server(tmp_path):
    pods, asked = [gateway_pod("one", "10.0.0.1"), gateway_pod("two", "10.0.0.2")], []
    answers = {"one": (404, {"message": "not here"}), "two": (200, FOUND)}
    async with cluster_of(tmp_path, pods, answers, asked) as cluster:
        assert await gateway_pods.choice_of(cluster, SYSTEM, "a/b") == FOUND
    base = f"/api/v1/namespaces/{SYSTEM}/pods"
    assert asked == [f"{base}/{name}:9081/proxy/choices/a%2Fb" for name in ("one", "two")]


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ({"one": (404, {}), "two": (404, {})}, None),
        ({"one": (403, {"message": "may not"}), "two": (404, {})}, "may not"),
        ({"one": (503, {"message": "gone"}), "two": (200, FOUND)}, ""),
    ],
    ids=["none knows it", "forbidden", "one does not answer"],
)
async def test_a_gateway_that_does_not_answer_hides_no_other(tmp_path, answers, error):
    pods = [gateway_pod("one", "10.0.0.1"), gateway_pod("two", "10.0.0.2")]
    async with cluster_of(tmp_path, pods, answers, []) as cluster:
        if error:
            with pytest.raises(KubeError, match=error):
                await gateway_pods.choice_of(cluster, SYSTEM, "a")
        else:
            assert await gateway_pods.choice_of(cluster, SYSTEM, "a") == (None if error is None else FOUND)


@pytest.mark.parametrize(("status", "document", "found"), [(200, FOUND, FOUND), (404, {"message": "no"}, None)])
async def test_a_gateway_on_loopback_is_read_directly(tmp_path, status, document, found):
    """The API server does not proxy to loopback."""

    async def handle(_request):
        return web.json_response(document, status=status)

    async with listening(handle) as port:
        pods = [gateway_pod("local", "127.0.0.1", port=port)]
        async with cluster_of(tmp_path, pods, {}, []) as cluster:
            assert await gateway_pods.choice_of(cluster, SYSTEM, "a") == found


@pytest.mark.parametrize("pods", [[], [gateway_pod("other", "10.0.0.1", account="default")]])
async def test_without_a_gateway_it_says_so(tmp_path, pods):
    async with cluster_of(tmp_path, pods, {}, []) as cluster:
        with pytest.raises(KubeError, match="there is no gateway in the namespace kvasir-system"):
            await gateway_pods.choice_of(cluster, SYSTEM, "a")
