"""Every query of every panel has data: a real Prometheus scrapes operator, gateway and runtime under a load.

The runtime is a real process with a real model, behind the real Envoy with our picker. The operator is the real one on
a fake cluster, whose pod is that runtime. Skipped where Prometheus is not installed.
"""

import asyncio
import json
import math
import re
import shutil
import sys
import time
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import pytest
import yaml
from aiohttp import web

from fakes import checkpoints
from fakes.api_process import api_process
from fakes.gateway import DEADLINE_S, FakeObjects, gateway, until
from fakes.models import words
from fakes.operator_bench import FILE, KEY, Bench
from kvasir_api import state
from kvasir_api.status import ModelStatus
from kvasir_gateway.hold_queue import HoldLimits
from kvasir_kube import http_sites
from kvasir_kube.kinds import ACCELERATOR_CLASS, INFERENCE_SERVICE
from kvasir_local import addresses

MONITORING = Path(__file__).parents[2] / "manifests" / "components" / "monitoring"
REAL = (sys.executable, "-m", "kvasir_runtime", "serve")
NAMESPACE, SERVICE = KEY
SCRAPES, EVALUATIONS = "2s", "200ms"
"""No scrape may take longer than the interval, and the first ones of a busy machine take a second."""
ON_CARDS = re.compile(r"\bkvasir_gpu_|\bkvasir_device_peak_\w+{[^}]*}\) > 0")
"""What only a replica on a card has."""
PLACES = {"$__rate_interval": "1m", "$namespace": NAMESPACE, "$service": SERVICE, "$pod": ".*"}
H100 = {
    "memory": "80Gi",
    "pricePerHour": 400,
    "compute": {"memoryGigabytesPerSecond": 3350, "fp16Teraflops": 989},
}
ON_H100 = {"resources": {"accelerator": {"count": 1, "classes": ["h100"]}}}
PLAN = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}

pytestmark = [
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed"),
    pytest.mark.timeout(180),
]


@asynccontextmanager
async def prometheus(folder: Path, **targets: tuple[str, dict[str, str]]):
    """One that scrapes and has our rules. targets: address and labels by job, as the monitors give them."""
    rules = yaml.safe_load((MONITORING / "rules.yaml").read_text())["spec"]
    config = {
        "global": {"scrape_interval": SCRAPES, "scrape_timeout": SCRAPES, "evaluation_interval": EVALUATIONS},
        "rule_files": ["rules.yml"],
        "scrape_configs": [
            {
                "job_name": job,
                "honor_labels": job != "runtime",
                "static_configs": [{"targets": [address], "labels": labels}],
            }
            for job, (address, labels) in targets.items()
        ],
    }
    (folder / "rules.yml").write_text(yaml.safe_dump(rules))
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    (port,) = addresses.free_ports(1)
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            "prometheus", "--config.file", str(folder / "prometheus.yml"), "--storage.tsdb.path", str(folder / "data"),
            "--web.listen-address", f"127.0.0.1:{port}", stdout=log, stderr=log,
        )  # fmt: skip
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            yield Asked(session)
    finally:
        process.kill()
        await process.wait()


class Asked:
    """The API of a Prometheus."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def values(self, query: str) -> list[float]:
        """Present values of its series that are numbers; none while it does not answer."""
        try:
            async with self._session.get("/api/v1/query", params={"query": query}) as response:
                answer = await response.json()
        except aiohttp.ClientError:
            return []
        assert answer["status"] == "success", (query, answer)
        return [value for s in answer["data"]["result"] if not math.isnan(value := float(s["value"][1]))]


@asynccontextmanager
async def operator(runtime):
    """The operator with one service on a class with a price, and the address of its metrics."""
    bench = Bench()
    await bench.cluster.put(ACCELERATOR_CLASS, {"metadata": {"name": "h100"}, "spec": H100})
    await bench.put_service(autoscaling={}, **ON_H100)
    known = ModelStatus(uri=FILE["model"]["uri"], facts=words(), inspected_at="2026-01-01T00:00:00Z")
    service = bench.cluster.stored(INFERENCE_SERVICE, *KEY)
    await bench.cluster.put(INFERENCE_SERVICE, {**service, "status": {"model": known.model_dump(by_alias=True)}})
    await bench.turn()
    await bench.put_pods(1)
    bench.operator.telemetry.leading(True)

    async def metrics(_):
        return web.Response(body=bench.operator.telemetry.text())

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app)
    await runner.setup()
    await http_sites.TcpSite(runner, "127.0.0.1", 0).start()

    async def turn():
        document = await asyncio.to_thread(runtime.ask, "/state", ops=True)
        bench.reader.says["http://10.0.0.1:8001"] = state.decode(document.body)
        started = time.monotonic()
        await bench.turn()
        bench.operator.telemetry.reconciled("ok", time.monotonic() - started)

    try:
        yield bench, f"127.0.0.1:{runner.addresses[0][1]}", turn
    finally:
        await runner.cleanup()


async def load(door, bench, turn):
    """Chats that share a prefix, one with a grammar, one that is refused; and a decision of the autoscaler."""
    prompt = [{"role": "user", "content": "the operator watches the services; " * 8}]
    fields = {"messages": prompt, "max_tokens": 24, "temperature": 0}
    guided = {"type": "json_schema", "json_schema": {"name": "plan", "schema": PLAN, "strict": True}}
    for more in ({}, {}, {"response_format": guided}, {"ignore_eos": True}):
        status, body, _ = await door.post("tiny", **fields, **more)
        assert status == 200, body
    status, _, _ = await door.post("tiny", **{**fields, "max_tokens": 10**6})
    assert status == 400
    await turn()
    await bench.put_service(autoscaling={"minReplicas": 2}, **ON_H100)
    for _ in range(3):
        await turn()


def expressions():
    """Every query of every panel and every variable, with the variables filled in, and where it is."""
    for found in yaml.safe_load_all((MONITORING / "dashboards.yaml").read_text()):
        for name, text in found["data"].items():
            document = json.loads(text)
            for variable in document["templating"]["list"]:
                if variable["type"] == "query":
                    metric, label = variable["query"].removeprefix("label_values(").removesuffix(")").rsplit(",", 1)
                    yield f"{name}: ${variable['name']}", filled(f"count by ({label}) ({metric})")
            for panel in document["panels"]:
                for target in panel.get("targets", ()):
                    yield f"{name}: {panel['title']} {target['refId']}", filled(target["expr"])


def filled(query):
    for place, value in PLACES.items():
        query = query.replace(place, value)
    return query


async def test_every_query_of_every_panel_has_data_under_a_load(tmp_path):
    model = checkpoints.write(tmp_path / "tiny")
    objects = FakeObjects()
    arguments = ("--kv-cache-tokens", "4096", "--device", "cpu")
    with api_process(model, *arguments, command=REAL) as runtime:
        pod = SimpleNamespace(name="tiny-0", http_port=runtime.http[1], ops_port=runtime.ops[1])
        objects.serve(SERVICE, pod)
        objects.serve("asleep")
        objects.route(SERVICE, rules=[{"targets": [{"service": SERVICE}]}])
        async with gateway(objects=objects, hold=HoldLimits()) as door, operator(runtime) as (bench, metrics, turn):
            home = {"namespace": "kvasir-system"}
            targets = {
                "operator": (metrics, {**home, "pod": "operator-0"}),
                "gateway": (f"127.0.0.1:{door.state_port}", {**home, "pod": "gateway-0"}),
                "runtime": (
                    f"127.0.0.1:{runtime.http[1]}",
                    {"namespace": NAMESPACE, "service": SERVICE, "pod": "tiny-0", "revision": "abc"},
                ),
            }
            async with prometheus(tmp_path, **targets) as asked:

                async def scraped():
                    return await asked.values("count(up == 1)") == [3.0]

                await until(scraped, "all three are scraped")
                await turn()
                await load(door, bench, turn)
                lacking = {place: query for place, query in expressions() if not ON_CARDS.search(query)}
                assert len(lacking) > 80
                async with asyncio.timeout(DEADLINE_S):
                    await settled(asked, lacking, door)


async def settled(asked, lacking, door):
    """Returns when every query has data; at the deadline the rest is in the error. Until then requests go on, since a
    share has data only where they fell between two scrapes.
    """
    try:
        while lacking:
            for place, query in list(lacking.items()):
                if await asked.values(query):
                    del lacking[place]
            await door.post("tiny", messages=[{"role": "user", "content": "more"}], max_tokens=2)
            with suppress(TimeoutError):  # one that waits for a replica, and whose client leaves
                await asyncio.wait_for(door.post("asleep", prompt="x"), 0.2)
            await asyncio.sleep(0.05)
    except asyncio.CancelledError:
        raise AssertionError(f"no data: {lacking}") from None
