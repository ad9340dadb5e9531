"""The part of the kubelet API that the API server needs for `kubectl logs`: GET /containerLogs over HTTPS on loopback.

Clients need a certificate of the cluster's authority when there is a ca.crt; else any local process may read logs.
"""

import asyncio
import datetime as dt
import ipaddress
import logging
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kvasir_kube import http_sites
from kvasir_local.node import container_logs
from kvasir_local.node.container_logs import LogOptions
from kvasir_local.node.pod_worker import PodWorker
from kvasir_local.node.rules.kinds import micro_timestamp
from kvasir_local.node.rules.pod_record import Waiting
from kvasir_local.node.settings import NodeSettings

LOG: Final = logging.getLogger(__name__)
Find = Callable[[str, str], PodWorker | None]


class KubeletApi:
    """Serves logs of the pods that `find` returns; `start` returns the port."""

    def __init__(self, settings: NodeSettings, find: Find) -> None:
        self._settings, self._find = settings, find
        self._runner: web.AppRunner | None = None

    async def start(self, context: ssl.SSLContext) -> int:
        """Listen on a free port of the node's address."""
        app = web.Application()
        app.add_routes(
            [web.get("/healthz", self._health), web.get("/containerLogs/{namespace}/{pod}/{container}", self._logs)]
        )
        app.router.add_route("*", "/{path:.*}", self._other)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = http_sites.TcpSite(self._runner, self._settings.host_ip, 0, ssl_context=context)
        await site.start()
        port: int = self._runner.addresses[0][1]
        return port

    async def stop(self) -> None:
        """Close the port and every stream."""
        if self._runner:
            await self._runner.cleanup()

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _other(self, request: web.Request) -> web.Response:
        return web.Response(status=501, text=f"the process node serves logs only, not {request.path}")

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        where = request.match_info
        worker = self._find(where["namespace"], where["pod"])
        if worker is None:
            raise web.HTTPNotFound(text=f"pod {where['namespace']}/{where['pod']} is not on this node")
        known = worker.record.containers.get(where["container"])
        if known is None:
            raise web.HTTPNotFound(text=f"container {where['container']} is not in pod {where['pod']}")
        run = known.restarts - (1 if request.query.get("previous") == "true" else 0)
        path = self._settings.log(worker.uid, known.name, run)
        if not path.exists():
            raise web.HTTPBadRequest(text=_absent(where["pod"], known.name, known.state, previous=run < known.restarts))
        options = log_options(dict(request.query))
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        if request.query.get("follow") != "true":
            await response.write(await asyncio.to_thread(container_logs.read, path, options))
            return response

        def ended() -> bool:
            now = worker.record.containers[known.name]
            return now.restarts != run or not worker.lives(known.name)

        async for part in container_logs.follow(path, options, ended):
            if part:
                await response.write(part)
        return response


def log_options(query: dict[str, str]) -> LogOptions:
    """The log query as the API server passes it on. web.HTTPBadRequest for numbers that are none."""
    try:
        since = query.get("sinceTime", "")
        if "sinceSeconds" in query:
            since = micro_timestamp(time.time() - int(query["sinceSeconds"]))
        return LogOptions(
            timestamps=query.get("timestamps") == "true",
            since=since,
            tail=int(query["tailLines"]) if "tailLines" in query else None,
            limit_bytes=int(query["limitBytes"]) if "limitBytes" in query else None,
        )
    except ValueError as error:
        raise web.HTTPBadRequest(text=str(error)) from error


def _absent(pod: str, container: str, state: object, *, previous: bool) -> str:
    if previous:
        return f'previous terminated container "{container}" in pod "{pod}" not found'
    reason = state.reason if isinstance(state, Waiting) else "unknown"
    return f'container "{container}" in pod "{pod}" is waiting to start: {reason}'


def tls_context(directory: Path, node_name: str, host_ip: str) -> ssl.SSLContext:
    """TLS with serving.crt and serving.key of a directory, made when absent; callers must be known to its ca.crt."""
    certificate, private = directory / "serving.crt", directory / "serving.key"
    if not certificate.exists():
        LOG.info("no %s: serving logs with a certificate of our own", certificate)
        _self_signed(certificate, private, node_name, host_ip)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, private)
    if (directory / "ca.crt").exists():
        context.load_verify_locations(directory / "ca.crt")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _self_signed(certificate: Path, private: Path, node_name: str, host_ip: str) -> None:
    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"system:node:{node_name}"[:64])])
    now = dt.datetime.now(dt.UTC)
    alternatives = [x509.DNSName(node_name), x509.IPAddress(ipaddress.ip_address(host_ip))]
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(secret.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + dt.timedelta(days=365))
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .sign(secret, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private.touch(mode=0o600)
    private.write_bytes(secret.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    certificate.write_bytes(signed.public_bytes(pem))
