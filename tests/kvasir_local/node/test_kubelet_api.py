"""The kubelet API of the node over real TLS: who may ask, what is served."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from ipaddress import ip_network
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from kvasir_local.node.container_logs import LogOptions
from kvasir_local.node.kubelet_api import KubeletApi, log_options, tls_context
from kvasir_local.node.rules.backoff import BackoffPolicy
from kvasir_local.node.rules.images import Programs
from kvasir_local.node.settings import NodeSettings


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    settings = NodeSettings(
        node_name="n0",
        state_dir=tmp_path,
        pods=ip_network("127.20.0.0/24"),  # type: ignore[arg-type]
        backoff=BackoffPolicy(),
        programs=Programs(scripts="", envoy=None),
        api_host="",
        api_port=0,
        keep=(),
    )
    server = KubeletApi(settings, lambda namespace, name: None)
    port = await server.start(tls_context(tmp_path, "n0", "127.0.0.1"))
    yield f"https://127.0.0.1:{port}"
    await server.stop()


async def fetch(url: str, context: ssl.SSLContext) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url, ssl=context) as response:
        return response.status, await response.text()


async def test_a_certificate_of_its_own_is_made_and_holds_for_its_address(url: str, tmp_path: Path):
    context = ssl.create_default_context(cafile=tmp_path / "serving.crt")
    assert await fetch(f"{url}/healthz", context) == (200, "ok")
    assert (tmp_path / "serving.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/containerLogs/ns/p/c", 404, "pod ns/p is not on this node"),
        ("/exec/ns/p/c", 501, "serves logs only, not /exec/ns/p/c"),
    ],
)
async def test_what_is_not_there_is_said(url: str, tmp_path: Path, path: str, status: int, words: str):
    context = ssl.create_default_context(cafile=tmp_path / "serving.crt")
    code, text = await fetch(url + path, context)
    assert (code, words in text) == (status, True)


async def test_a_caller_without_a_certificate_is_refused_where_an_authority_is_known(tmp_path: Path):
    tls_context(tmp_path, "n0", "127.0.0.1")
    (tmp_path / "ca.crt").write_bytes((tmp_path / "serving.crt").read_bytes())
    context = tls_context(tmp_path, "n0", "127.0.0.1")
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(aiohttp.ClientError):
        await fetch(f"https://127.0.0.1:{port}/", ssl.create_default_context(cafile=tmp_path / "serving.crt"))
    server.close()
    await server.wait_closed()


def test_a_log_query_is_read_as_the_api_server_passes_it_on():
    assert log_options({"tailLines": "5", "timestamps": "true", "limitBytes": "9"}) == LogOptions(
        tail=5, timestamps=True, limit_bytes=9
    )
    assert log_options({"sinceTime": "2026-01-01T00:00:00Z"}).since == "2026-01-01T00:00:00Z"
    assert log_options({"sinceSeconds": "60"}).since.endswith("Z")
    with pytest.raises(web.HTTPBadRequest):
        log_options({"tailLines": "many"})
