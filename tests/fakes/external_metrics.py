"""A provider of external.metrics.k8s.io on loopback, behind the API server's aggregation layer, as prometheus-adapter
is one: it reads the operator's metrics and answers the HPA controller.
"""

import contextlib
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from kvasir_kube import certificates, http_sites
from kvasir_kube.client import Client
from kvasir_kube.kinds import SERVICE, Json, Kind

GROUP: Final = "external.metrics.k8s.io"
VERSION: Final = "v1beta1"
API_SERVICE: Final = Kind(group="apiregistration.k8s.io", kind="APIService", plural="apiservices", namespaced=False)
NAME: Final = "external-metrics"
HOST: Final = "localhost"


class ExternalMetrics:
    """read: the operator's metrics in the text format. asked: how often the HPA controller has read a metric. fails:
    while set, it is refused, so that the HPA changes nothing."""

    def __init__(self, read: Callable[[], Awaitable[str]]) -> None:
        self.asked, self.fails = 0, False
        self._read = read

    def app(self) -> web.Application:
        """The few paths of discovery, and the metrics."""
        known = {"groupVersion": f"{GROUP}/{VERSION}", "version": VERSION}
        group = {"kind": "APIGroup", "apiVersion": "v1", "name": GROUP, "versions": [known], "preferredVersion": known}
        resources = {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": known["groupVersion"],
            "resources": [],
        }
        app = web.Application()
        for path, found in (
            ("/apis", {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]}),
            (f"/apis/{GROUP}", group),
            (f"/apis/{GROUP}/{VERSION}", resources),
        ):
            app.router.add_get(path, _document(found))
        app.router.add_get(f"/apis/{GROUP}/{VERSION}/namespaces/{{namespace}}/{{metric}}", self._values)
        return app

    async def _values(self, request: web.Request) -> web.Response:
        """Series of that name whose labels match, of any namespace: a provider need not hold its rules to the one that
        asks."""
        self.asked += 1
        if self.fails:
            return web.Response(status=503)
        wanted = dict(part.split("=", 1) for part in request.query.get("labelSelector", "").split(",") if part)
        name, now = request.match_info["metric"], datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        items = [
            {"metricName": name, "metricLabels": labels, "timestamp": now, "value": f"{value:g}"}
            for family in text_string_to_metric_families(await self._read())
            for series, labels, value, *_ in family.samples
            if series == name and wanted.items() <= labels.items()
        ]
        return web.json_response(
            {"kind": "ExternalMetricValueList", "apiVersion": f"{GROUP}/{VERSION}", "metadata": {}, "items": items}
        )


@contextlib.asynccontextmanager
async def registered(
    client: Client, namespace: str, read: Callable[[], Awaitable[str]], tmp: Path
) -> AsyncGenerator[ExternalMetrics]:
    """The provider, known to the API server while the context is open.

    The Service is an ExternalName, since pods of a local cluster have no ClusterIP that the API server could reach.
    """
    metrics = ExternalMetrics(read)
    runner = web.AppRunner(metrics.app(), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await http_sites.TcpSite(runner, "127.0.0.1", 0, ssl_context=_server_side(tmp)).start()
    where = {"namespace": namespace, "name": NAME}
    spec: Json = {"type": "ExternalName", "externalName": HOST}
    await client.apply(SERVICE, {"metadata": where, "spec": spec}, manager="test")
    registration: Json = {
        "group": GROUP,
        "version": VERSION,
        "service": {**where, "port": runner.addresses[0][1]},
        "insecureSkipTLSVerify": True,
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
    }
    name = f"{VERSION}.{GROUP}"
    await client.apply(API_SERVICE, {"metadata": {"name": name}, "spec": registration}, manager="test")
    try:
        yield metrics
    finally:
        # At once: a group that does not answer keeps the API server from ending any namespace.
        await client.delete(API_SERVICE, "", name)
        await runner.cleanup()


def _document(found: Json) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(found)

    return answer


def _server_side(tmp: Path) -> ssl.SSLContext:
    """TLS with a certificate of its own, which the API server does not check."""
    now = datetime.now(UTC)
    pair = certificates.leaf(certificates.authority(NAME, now=now), user=NAME, names=(HOST,), now=now)
    chain = tmp / "external-metrics.pem"
    chain.write_bytes(pair.certificate + pair.key)
    chain.chmod(0o600)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain)
    return context
