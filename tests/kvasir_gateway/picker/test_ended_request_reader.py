"""Reading from replicas what requests took: only while it is awaited, and whatever a replica answers."""

import asyncio
import contextlib

import pytest
from aiohttp import web

from fakes import tls_files
from fakes.gateway import until
from kvasir_api import ended_requests, names
from kvasir_api.ended_requests import EndedRequest, EndedRequests
from kvasir_gateway.picker import ended_request_reader
from kvasir_gateway.picker.ended_request_reader import EndedRequestReader
from kvasir_kube import http_sites, pod_tls
from kvasir_kube.pod_tls import PodTls

NAME = "chat.team.svc"


class Awaiting:
    """In place of the audit: awaits one address until a request with an id was reported."""

    def __init__(self, name):
        self.name, self.taken, self.looks = name, [], 0

    def awaited(self):
        self.looks += 1
        return frozenset() if self.name in self.taken else frozenset({"pod", "gone"})

    def take(self, ended):
        self.taken += [one.id for one in ended]

    def expire(self):
        pass


@contextlib.asynccontextmanager
async def replica(answers, tls=None):
    """answers: one of each is sent, and then the last again. Yields its URL and the queries so far. tls: its side."""
    queries = []

    async def answer(request):
        queries.append(dict(request.query))
        found = answers[min(len(queries), len(answers)) - 1]
        return web.Response(body=found) if isinstance(found, bytes) else web.Response(status=found)

    application = web.Application()
    application.router.add_get(names.PATH_ENDED_REQUESTS, answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = http_sites.TcpSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    try:
        yield pod_tls.base_url("127.0.0.1", runner.addresses[0][1], NAME if tls else ""), queries
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def reading(audit, url, tls=None):
    reads = EndedRequestReader(audit, lambda: {"pod": url}, tls=tls or PodTls(), period_s=0.005)
    reader = asyncio.create_task(reads.run())
    try:
        yield
    finally:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)


def document(last, *ids):
    return ended_requests.encode(
        EndedRequests(instance="i", last=last, requests=tuple(EndedRequest(id=name) for name in ids))
    )


async def test_it_goes_on_behind_what_it_has():
    audit = Awaiting("b")
    async with replica([document(7, "a"), document(8, "b")]) as (url, queries), reading(audit, url):
        await until(lambda: "b" in audit.taken, "both are read")
        looks = audit.looks
        await until(lambda: audit.looks > looks + 3, "it looks again")
    assert queries == [{"instance": "", "after": "0"}, {"instance": "i", "after": "7"}], "and reads nothing unasked"


@pytest.mark.parametrize("answer", [404, 500, b"{", b'{"instance": "i"}', b"x" * (ended_request_reader.MOST_BYTES + 1)])
async def test_an_answer_that_is_none_is_read_again(answer):
    audit = Awaiting("a")
    async with replica([answer, document(1, "a")]) as (url, queries), reading(audit, url):
        await until(lambda: "a" in audit.taken, "it is read")
    assert [query["after"] for query in queries] == ["0", "0"]


async def looked(audit):
    """It has read what it could, more than once."""
    looks = audit.looks
    await until(lambda: audit.looks > looks + 5, "it looks again")


async def test_until_an_authority_is_known_no_connection_is_made_to_a_replica_that_speaks_tls(tmp_path):
    """Else the authorities of the system would count."""
    ca, audit, tls, hellos = tls_files.authority(), Awaiting("a"), PodTls(), []
    tls_files.issued(ca, tmp_path, names=(NAME,))
    server = tls_files.server_side(tmp_path)
    server.sni_callback = lambda _connection, name, _context: hellos.append(name)
    async with replica([document(1, "a")], server) as (url, queries), reading(audit, url, tls):
        await looked(audit)
        assert (hellos, queries) == ([], [])
        tls.trust(ca.certificate.decode())
        await until(lambda: "a" in audit.taken, "it is read")
    assert hellos[0] == NAME


@pytest.mark.parametrize("wrong", ["name", "authority"])
async def test_a_replica_that_is_not_verified_is_not_read(tmp_path, wrong):
    ours = tls_files.authority()
    by = tls_files.authority() if wrong == "authority" else ours
    tls_files.issued(by, tmp_path, names=("*.other.svc" if wrong == "name" else "*.team.svc",))
    audit, tls = Awaiting("a"), PodTls()
    tls.trust(ours.certificate.decode())
    async with replica([document(1, "a")], tls_files.server_side(tmp_path)) as (url, queries), reading(audit, url, tls):
        await looked(audit)
        assert (queries, audit.taken) == ([], [])
