"""What a client of the API server costs: `python tests/bench/kube_client.py`, kept in docs/benchmarks/operator.md.

`kvasir_kube.client`, which is the `kubernetes` package's `ApiClient` with plain JSON, between aiohttp alone and the
package's `DynamicClient`. Each runs in a process of its own, sequentially, before a stub API server on loopback in
another process, over HTTP: processor time and memory are those of the client alone, in interleaved rounds.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvasir_kube.kinds import DEPLOYMENT, Json, strip_managed_fields

CLIENTS: Final = ("aiohttp alone", "kvasir_kube", "ApiClient's defaults", "DynamicClient")
NAMESPACE: Final = "bench"
PATH: Final = DEPLOYMENT.path(NAMESPACE)
MANAGER: Final = "bench"
OBJECTS: Final = 500
UPDATES: Final = 2000
WARM_UP: Final = 200


def deployment(number: int) -> Json:
    """A Deployment of the size that the operator applies for a service, some 3 KB."""
    probe = {"httpGet": {"path": "/readyz", "port": "ops"}, "periodSeconds": 2, "failureThreshold": 3}
    container = {
        "name": "runtime",
        "image": "registry.example/kvasir-runtime:0.1.0",
        "args": ["--model", "/models/model", *(f"--option-{index}=value-{index}" for index in range(20))],
        "env": [{"name": f"VARIABLE_{index}", "value": f"value {index}"} for index in range(12)],
        "ports": [{"name": "http", "containerPort": 8000}, {"name": "ops", "containerPort": 8001}],
        "resources": {"requests": {"cpu": "4", "memory": "16Gi"}, "limits": {"memory": "16Gi", "nvidia.com/gpu": "1"}},
        "startupProbe": probe,
        "readinessProbe": probe,
        "livenessProbe": probe,
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": f"volume-{index}", "mountPath": f"/volume/{index}"} for index in range(4)],
    }
    labels = {f"serving.kvasir.dev/label-{index}": f"value-{index}" for index in range(6)}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"namespace": NAMESPACE, "name": f"service-{number}", "labels": labels, "annotations": labels},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "containers": [container],
                    "volumes": [{"name": f"volume-{index}", "emptyDir": {}} for index in range(4)],
                },
            },
        },
    }


def stored(number: int, version: int) -> Json:
    """The same as the API server returns it, with some 3 KB of managedFields and a status."""
    found = deployment(number)
    owned: Json = {f"f:field-{index}": {"f:name": {}, "f:value": {}, ".": {}} for index in range(40)}
    found["metadata"] |= {
        "uid": f"00000000-0000-0000-0000-{number:012}",
        "resourceVersion": str(version),
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "generation": 1,
        "managedFields": [{"manager": MANAGER, "operation": "Apply", "fieldsV1": owned}],
    }
    found["status"] = {"replicas": 2, "readyReplicas": 2, "availableReplicas": 2, "observedGeneration": 1}
    return found


async def serve() -> None:
    """The stub API server: discovery, one Deployment to read and apply, and a watch that sends a fixed stream."""
    from aiohttp import web  # only this process needs it

    one = json.dumps(stored(0, 1)).encode()
    lines = [{"type": "ADDED", "object": stored(number, number + 1)} for number in range(OBJECTS)]
    lines += [{"type": "MODIFIED", "object": stored(i % OBJECTS, OBJECTS + i + 1)} for i in range(UPDATES)]
    stream = [json.dumps(line).encode() + b"\n" for line in lines]

    def document(body: Json) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(_: web.Request) -> web.Response:
            return web.json_response(body)

        return answer

    async def known(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=one, content_type="application/json")

    async def watch(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "application/json"})
        await response.prepare(request)
        for line in stream:
            await response.write(line)
        return response

    verbs = ["get", "list", "patch", "watch"]
    resource = {"name": "deployments", "singularName": "deployment", "namespaced": True, "kind": "Deployment"}
    version = {"groupVersion": "apps/v1", "version": "v1"}
    app = web.Application()
    app.router.add_get("/version", document({"major": "1", "minor": "34"}))
    app.router.add_get("/api", document({"kind": "APIVersions", "versions": ["v1"]}))
    app.router.add_get("/api/v1", document({"kind": "APIResourceList", "resources": []}))
    app.router.add_get(
        "/apis",
        document(
            {"kind": "APIGroupList", "groups": [{"name": "apps", "versions": [version], "preferredVersion": version}]}
        ),
    )
    app.router.add_get(
        "/apis/apps/v1", document({"kind": "APIResourceList", "resources": [{**resource, "verbs": verbs}]})
    )
    app.router.add_get(PATH, watch)
    app.router.add_get(PATH + "/{name}", known)
    app.router.add_patch(PATH + "/{name}", known)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verbs:
    """What is measured of a client, each with plain JSON objects."""

    get: Callable[[str], Awaitable[Json]]
    apply: Callable[[Json], Awaitable[Json]]
    watch: Callable[[], AsyncIterator[Json]]


async def plain(url: str, stack: AsyncExitStack) -> Verbs:
    """aiohttp alone, what kvasir_kube.client was until it took ApiClient: the least that any client here costs."""
    import aiohttp
    from kubernetes.aio.client.configuration import Configuration  # it read the credentials

    base = Configuration(host=url).host
    session = await stack.enter_async_context(aiohttp.ClientSession(read_bufsize=4 << 20))

    async def call(method: str, path: str, query: Mapping[str, str], body: Json | None, content: str) -> Json:
        headers = {"accept": "application/json", "content-type": content}
        data = None if body is None else json.dumps(body)
        async with session.request(method, base + path, params=query, data=data, headers=headers) as response:
            found: Json = json.loads(await response.text())
            return found

    async def watch() -> AsyncIterator[Json]:
        async with session.get(base + PATH, params={"watch": "1"}) as response:
            async for line in response.content:
                yield json.loads(line)["object"]

    query = {"fieldManager": MANAGER, "force": "true"}
    return Verbs(
        get=lambda name: call("GET", f"{PATH}/{name}", {}, None, "application/json"),
        apply=lambda obj: call(
            "PATCH", f"{PATH}/{obj['metadata']['name']}", query, obj, "application/apply-patch+yaml"
        ),
        watch=watch,
    )


async def ours(url: str, stack: AsyncExitStack, session: Mapping[str, Any] | None = None) -> Verbs:
    """kvasir_kube.client: ApiClient with plain JSON, and Watch. session: options of its aiohttp session."""
    from kubernetes.aio.client.configuration import Configuration

    from kvasir_kube import client as kube

    config = Configuration(host=url)
    config.client_session_kwargs = dict(kube.SESSION if session is None else session)
    client = await stack.enter_async_context(kube.Client(config))

    async def watch() -> AsyncIterator[Json]:
        async for event in client.watch(DEPLOYMENT, NAMESPACE, resource_version="1"):
            yield event.obj

    return Verbs(
        get=lambda name: client.get(DEPLOYMENT, NAMESPACE, name),
        apply=lambda obj: client.apply(DEPLOYMENT, obj, manager=MANAGER),
        watch=watch,
    )


async def dynamic_client(url: str, stack: AsyncExitStack) -> Verbs:
    """The dynamic client as its documentation uses it: results are ResourceInstances."""
    from kubernetes.aio import client, dynamic

    api: Any = await stack.enter_async_context(client.ApiClient(client.Configuration(host=url)))
    found: Any = await dynamic.DynamicClient(api)
    deployments = await found.resources.get(api_version="apps/v1", kind="Deployment")

    async def get(name: str) -> Json:
        result: Json = (await deployments.get(name=name, namespace=NAMESPACE)).to_dict()
        return result

    async def apply(obj: Json) -> Json:
        applied = await found.server_side_apply(deployments, obj, field_manager=MANAGER, force_conflicts=True)
        result: Json = applied.to_dict()
        return result

    async def watch() -> AsyncIterator[Json]:
        async for event in found.watch(deployments, namespace=NAMESPACE, resource_version="1", timeout=240):
            yield event["raw_object"]

    return Verbs(get=get, apply=apply, watch=watch)


def rss_mib() -> float:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


async def measure(name: str, url: str, count: int) -> dict[str, float]:
    """One round of one client: processor time of each verb in microseconds, memory in MiB."""
    makers: dict[str, Callable[[str, AsyncExitStack], Awaitable[Verbs]]] = {
        "aiohttp alone": plain,
        "kvasir_kube": ours,
        "ApiClient's defaults": lambda url, stack: ours(url, stack, session={}),
        "DynamicClient": dynamic_client,
    }
    found: dict[str, float] = {}
    async with AsyncExitStack() as stack:
        verbs = await makers[name](url, stack)
        found["memory after import"] = rss_mib()
        bodies = [deployment(number) for number in range(count)]
        for body in bodies[:WARM_UP]:
            await verbs.get("service-0")
            await verbs.apply(body)
        started = time.process_time()
        for _ in range(count):
            await verbs.get("service-0")
        found["get"] = (time.process_time() - started) / count * 1e6
        started = time.process_time()
        for body in bodies:
            await verbs.apply(body)
        found["apply"] = (time.process_time() - started) / count * 1e6
        del bodies
        started = time.process_time()
        objects = {obj["metadata"]["name"]: strip_managed_fields(obj) async for obj in verbs.watch()}
        found["watch event"] = (time.process_time() - started) / (OBJECTS + UPDATES) * 1e6
        found["memory with 500 objects watched"] = rss_mib()
        assert len(objects) == OBJECTS
    return found


def report(rounds: dict[str, list[dict[str, float]]]) -> str:
    """A table of min / median / max."""
    rows = ["| | " + " | ".join(CLIENTS) + " |", "|---|" + "---|" * len(CLIENTS)]
    for key in rounds[CLIENTS[0]][0]:
        unit, digits = ("MiB", 1) if key.startswith("memory") else ("µs", 0)
        cells = []
        for client in CLIENTS:
            values = [one[key] for one in rounds[client]]
            low, middle, high = min(values), statistics.median(values), max(values)
            cells.append(f"{low:.{digits}f} / {middle:.{digits}f} / {high:.{digits}f}")
        rows.append(f"| {key} [{unit}] | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def main() -> None:
    """Run all rounds, or, inside, one of the processes that they need."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=2000, help="Requests of each verb in a round.")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--one", nargs=2, metavar=("CLIENT", "URL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve())
    elif options.one:
        client, url = options.one
        print(json.dumps(asyncio.run(measure(client, url, options.count))))
    else:
        server = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            rounds: dict[str, list[dict[str, float]]] = {client: [] for client in CLIENTS}
            for _ in range(options.rounds):
                for client in CLIENTS:
                    command = [sys.executable, __file__, "--count", str(options.count), "--one", client, url]
                    out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
                    rounds[client].append(json.loads(out))
            print(report(rounds))
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
