"""The client sends what the API server expects and turns each of its answers into a result or a KubeError."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from kvasir_kube import http_sites
from kvasir_kube.client import Client, access, configuration, context_namespace
from kvasir_kube.errors import ConflictError, ExpiredError, KubeError, NotFoundError
from kvasir_kube.kinds import DEPLOYMENT, POD

KUBECONFIG = """
{{"apiVersion": "v1", "kind": "Config", "current-context": "c",
 "clusters": [{{"name": "c", "cluster": {{"server": "{server}"}}}}],
 "users": [{{"name": "u", "user": {{"token": "secret"}}}}],
 "contexts": [{{"name": "c", "context": {{"cluster": "c", "user": "u"}}}}]}}
"""
DEPLOYED = {"metadata": {"namespace": "ns", "name": "one"}, "spec": {"replicas": 0, "paused": None}}


@asynccontextmanager
async def client_of(tmp_path, answer):
    """A client of a server whose every answer is `answer(request, body)`."""

    async def handle(request):
        return await answer(request, await request.text())

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await http_sites.TcpSite(runner, "127.0.0.1", 0).start()
    (tmp_path / "kubeconfig").write_text(KUBECONFIG.format(server=f"http://127.0.0.1:{runner.addresses[0][1]}"))
    try:
        async with Client(await configuration(str(tmp_path / "kubeconfig"))) as client:
            yield client
    finally:
        await runner.cleanup()


def recorded(requests, reply):
    async def answer(request, body):
        requests.append((request.method, request.path, dict(request.query), request.headers, body))
        return web.json_response(reply)

    return answer


@pytest.mark.parametrize(
    ("call", "method", "path", "query", "content_type", "body"),
    [
        (
            lambda c: c.apply(DEPLOYMENT, DEPLOYED, manager="me"),
            "PATCH",
            "/apis/apps/v1/namespaces/ns/deployments/one",
            {"fieldManager": "me", "force": "true"},
            "application/apply-patch+yaml",
            {"apiVersion": "apps/v1", "kind": "Deployment", **DEPLOYED},
        ),
        (
            lambda c: c.apply(POD, {"metadata": {"namespace": "ns", "name": "p"}}, manager="me", subresource="status"),
            "PATCH",
            "/api/v1/namespaces/ns/pods/p/status",
            {"fieldManager": "me", "force": "true"},
            "application/apply-patch+yaml",
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "ns", "name": "p"}},
        ),
        (
            lambda c: c.merge(POD, "ns", "p", {"metadata": {"labels": {"gone": None}}}, manager="me"),
            "PATCH",
            "/api/v1/namespaces/ns/pods/p",
            {"fieldManager": "me"},
            "application/merge-patch+json",
            {"metadata": {"labels": {"gone": None}}},
        ),
        (
            lambda c: c.create(POD, {"metadata": {"namespace": "ns", "name": "p"}}),
            "POST",
            "/api/v1/namespaces/ns/pods",
            {},
            "application/json",
            {"metadata": {"namespace": "ns", "name": "p"}},
        ),
        (
            lambda c: c.delete(POD, "ns", "p", uid="u", grace_s=0),
            "DELETE",
            "/api/v1/namespaces/ns/pods/p",
            {},
            "application/json",
            {
                "apiVersion": "v1",
                "kind": "DeleteOptions",
                "propagationPolicy": "Background",
                "preconditions": {"uid": "u"},
                "gracePeriodSeconds": 0,
            },
        ),
    ],
)
async def test_a_write_is_one_request(tmp_path, call, method, path, query, content_type, body):
    requests = []
    async with client_of(tmp_path, recorded(requests, {})) as client:
        await call(client)
    ((sent, where, asked, headers, content),) = requests
    assert (sent, where, asked, json.loads(content)) == (method, path, query, body)
    assert headers["content-type"] == content_type
    assert headers["authorization"] == "Bearer secret"
    assert headers["accept"] == "application/json"


async def test_what_is_known_of_a_list_is_taken_in_place_of_what_comes(tmp_path):
    metadata = {"namespace": "ns", "name": "a", "resourceVersion": "7"}
    asked, mine = [], {"mine": True}

    async def page(*_):
        return web.json_response({"metadata": {}, "items": [{"metadata": metadata}]})

    def known(name, version):
        asked.append((name, version))
        return mine

    async with client_of(tmp_path, page) as client:
        (found,) = (await client.list(POD, "ns", known=known)).items
    assert found is mine
    assert asked == [(("ns", "a"), "7")]


async def test_a_list_is_read_in_pages_and_its_items_carry_their_kind(tmp_path):
    selectors, kept = [], []

    async def pages(request, _):
        selectors.append((request.query["labelSelector"], list(kept)))
        more = "continue" not in request.query
        metadata = {"continue": "next"} if more else {"resourceVersion": "9"}
        return web.json_response({"metadata": metadata, "items": [{"metadata": {"name": "a" if more else "b"}}]})

    def keep(item):
        kept.append(item["metadata"]["name"])
        return {"kind": item["kind"], "name": kept[-1]}

    selector = "app in (x, y),z!=é&"
    async with client_of(tmp_path, pages) as client:
        listing = await client.list(POD, "ns", selector, transform=keep)
    assert listing.items == ({"kind": "Pod", "name": "a"}, {"kind": "Pod", "name": "b"})
    assert listing.resource_version == "9"
    assert selectors == [(selector, []), (selector, ["a"])], "what is kept of a page is decided before the next one"


@pytest.mark.parametrize(
    "content", [b"<html>", b"{}", b"[]", b'{"items": 3}', b'{"items": [{}]}', b'{"items": [], "metadata": null}']
)
async def test_an_answer_that_is_no_list_is_an_error_and_never_an_empty_one(tmp_path, content):
    async def nonsense(*_):
        return web.Response(body=content, content_type="application/json")

    async with client_of(tmp_path, nonsense) as client:
        with pytest.raises(KubeError, match="list of pods cannot be read"):
            await client.list(POD, "ns")


@pytest.mark.parametrize(
    ("status", "kind"),
    [(404, NotFoundError), (409, ConflictError), (410, ExpiredError), (429, KubeError), (500, KubeError)],
)
async def test_a_refusal_is_an_error_with_the_servers_words(tmp_path, status, kind):
    async def refuse(*_):
        body = {"message": "why", "reason": "Because"}
        return web.json_response(body, status=status, headers={"Retry-After": "3"})

    async with client_of(tmp_path, refuse) as client:
        for verb in (client.get(POD, "ns", "p"), anext(client.watch(POD, "ns", resource_version="1"))):
            with pytest.raises(KubeError, match=r"^why$") as found:
                await verb
            assert type(found.value) is kind
            assert (found.value.status, found.value.reason, found.value.retry_after_s) == (status, "Because", 3.0)


async def test_deleting_an_absent_object_is_fine(tmp_path):
    async def absent(*_):
        return web.json_response({"message": "not found"}, status=404)

    async with client_of(tmp_path, absent) as client:
        await client.delete(POD, "ns", "p")


@pytest.mark.parametrize("body", ["<html>", "[1]"])
async def test_an_answer_that_is_no_object_is_the_message(tmp_path, body):
    async def broken(*_):
        return web.Response(status=502, text=body)

    async with client_of(tmp_path, broken) as client:
        with pytest.raises(KubeError) as found:
            await client.get(POD, "ns", "p")
    assert (str(found.value), found.value.status) == (body, 502)


async def test_a_server_that_does_not_listen_is_an_error(tmp_path):
    (tmp_path / "kubeconfig").write_text(KUBECONFIG.format(server="http://127.0.0.1:1"))
    async with Client(await configuration(str(tmp_path / "kubeconfig"))) as client:
        with pytest.raises(KubeError, match="GET /api/v1/namespaces/ns/pods/p: "):
            await client.get(POD, "ns", "p")
        with pytest.raises(KubeError, match="watch of pods broke"):
            await anext(client.watch(POD, resource_version="1"))


def lines(*sent):
    async def stream(request, _):
        response = web.StreamResponse(headers={"content-type": "application/json"})
        await response.prepare(request)
        for line in sent:
            await response.write((line if isinstance(line, str) else json.dumps(line)).encode() + b"\n")
            await asyncio.sleep(0)
        return response

    return stream


async def test_a_watch_yields_events_until_the_server_ends_it(tmp_path):
    added = {"type": "ADDED", "object": {"kind": "Pod", "metadata": {"name": "p", "resourceVersion": "2"}}}
    mark = {"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": "7"}}}
    requests = []

    async def stream(request, body):
        requests.append(dict(request.query))
        return await lines(added, mark)(request, body)

    async with client_of(tmp_path, stream) as client:
        found = [event async for event in client.watch(POD, "ns", "app=x", resource_version="1")]
    assert [(event.verb, event.obj) for event in found] == [("ADDED", added["object"]), ("BOOKMARK", mark["object"])]
    (query,) = requests
    assert query == {
        "watch": "1",
        "allowWatchBookmarks": "true",
        "resourceVersion": "1",
        "timeoutSeconds": "240",
        "labelSelector": "app=x",
    }


@pytest.mark.parametrize(
    ("line", "kind", "message"),
    [
        (
            {"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old: 1 (2)"}},
            ExpiredError,
            r"^too old: 1 \(2\)$",
        ),
        (
            {"type": "ERROR", "object": {"code": 500, "reason": "InternalError", "message": "oops"}},
            KubeError,
            "^oops$",
        ),
        ({"type": "ERROR", "object": {}}, KubeError, "watch of pods broke"),
        ({"type": "RENAMED", "object": {"metadata": {}}}, KubeError, "RENAMED"),
        ({"type": "BOOKMARK", "object": {}}, KubeError, "watch of pods broke"),
        ("{", KubeError, "a watch sent"),
        ("x" * (9 << 20), KubeError, "watch of pods broke"),
    ],
    ids=["expired", "error", "error without words", "verb", "bookmark", "no JSON", "too long"],
)
async def test_a_watch_that_breaks_is_an_error(tmp_path, line, kind, message):
    async with client_of(tmp_path, lines(line)) as client:
        with pytest.raises(KubeError, match=message) as found:
            await anext(client.watch(POD, resource_version="1"))
    assert type(found.value) is kind


async def test_an_event_may_be_a_long_line(tmp_path):
    obj = {"metadata": {"name": "p", "resourceVersion": "2"}, "data": "x" * (3 << 20)}
    async with client_of(tmp_path, lines({"type": "ADDED", "object": obj})) as client:
        assert [event.obj async for event in client.watch(POD, resource_version="1")] == [obj]


async def test_access_is_what_another_client_needs(tmp_path):
    (tmp_path / "kubeconfig").write_text(KUBECONFIG.format(server="https://127.0.0.1:1/"))
    found = await access(await configuration(str(tmp_path / "kubeconfig")))
    assert (found.server, found.token, found.ca_path, found.verify) == ("https://127.0.0.1:1", "secret", "", True)
    assert "secret" not in repr(found)


async def test_a_configuration_that_cannot_be_read_is_an_error(tmp_path):
    with pytest.raises(KubeError, match="no usable Kubernetes configuration"):
        await configuration(str(tmp_path / "absent"))


@pytest.mark.parametrize(("named", "want"), [("", "default"), ('"namespace": "models", ', "models")])
def test_the_namespace_of_a_context_is_kubectls(tmp_path, monkeypatch, named, want):
    path = tmp_path / "kubeconfig"
    path.write_text(
        KUBECONFIG.format(server="https://127.0.0.1:1/").replace('{"cluster": "c",', f'{{{named}"cluster": "c",')
    )
    assert context_namespace(str(path)) == want
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert context_namespace() == want


def test_the_namespace_of_a_configuration_that_cannot_be_read_is_an_error(tmp_path):
    with pytest.raises(KubeError, match="no usable Kubernetes configuration"):
        context_namespace(str(tmp_path / "absent"))
