"""How long a request for a service at zero waits beyond the start of its replica, and how true the times are that it
is given meanwhile: `make bench-wake`.

On a local cluster of its own. In each round a crowd comes for a service at zero; one of it streams. `overhead_s` is the
time to the first event of that stream less what the replica itself measured of its start (processes, weights, loading,
first steps). `eta_error` is the median of how far the announced times were off, as a fraction of what was left.
"""

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

import aiohttp

from fakes.life import DEADLINE_S, SAMPLE, Life
from kvasir_api import names
from kvasir_kube.client import Client, configuration
from kvasir_local import install, kubectl, stack
from kvasir_local.demo.scenario import put_model
from kvasir_local.progress import SilentProgress

NAMESPACE: Final = "wakes"
HELD: Final = f": {names.COMMENT_HELD} ".encode()


def main() -> None:
    """One line of JSON for each round, and one for all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--crowd", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvasir-bench-wake-") as home:
        wanted = stack.ClusterOptions(manifests=install.find_manifests())
        cluster = stack.up(Path(home), wanted, progress=SilentProgress())
        try:
            asyncio.run(_rounds(Life(cluster, NAMESPACE), options.rounds, options.crowd))
        finally:
            cluster.stop()


async def _rounds(life: Life, rounds: int, crowd: int) -> None:
    kubectl.run(life.cluster.kubectl, "create", "namespace", NAMESPACE)
    async with Client(await configuration(str(life.cluster.kubeconfig))) as client:
        await put_model(client, SAMPLE, namespace=NAMESPACE, deadline_s=DEADLINE_S)
    life.apply(autoscaling={"minReplicas": 0, "maxReplicas": 2, "idleSeconds": 5})
    await life.until_ready()
    found = []
    for number in range(rounds):
        await life.until(
            lambda: life.condition("Ready").get("reason") == "ScaledToZero" and not life.items("pods"), "zero replicas"
        )
        found.append(await _wake(life, crowd))
        print(json.dumps({"round": number, **found[-1]}), flush=True)
    overheads = [one["overhead_s"] for one in found]
    errors = [error for one in found for error in one["eta_errors"]]
    print(
        json.dumps(
            {
                "overhead_p50_s": round(median(overheads), 2),
                "overhead_p95_s": round(quantiles(overheads, n=20)[-1], 2) if len(overheads) > 1 else overheads[0],
                "eta_error_p50": round(median(errors), 3) if errors else None,
                "scale_ups": max(one["scale_ups"] for one in found),
                "not_served": sum(one["not_served"] for one in found),
            }
        )
    )


async def _wake(life: Life, crowd: int) -> dict[str, Any]:
    url = f"{stack.gateway_url(life.cluster)}/v1/completions"
    body = {"model": NAMESPACE, "prompt": "x", "max_tokens": 4, "ignore_eos": True}
    timeout, began = aiohttp.ClientTimeout(total=DEADLINE_S), time.monotonic()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:

        async def ask() -> int:
            async with session.post(url, json=body) as response:
                await response.read()
                return response.status

        others = [asyncio.create_task(ask()) for _ in range(crowd - 1)]
        etas = list[tuple[float, float]]()
        async with session.post(url, json=body | {"stream": True}) as response:
            async for line in response.content:
                if line.startswith(b"data:"):
                    break
                if line.startswith(HELD) and "eta_s" in (place := json.loads(line.removeprefix(HELD))):
                    etas.append((time.monotonic() - began, place["eta_s"]))
            first_s = time.monotonic() - began
            await response.read()
        statuses = await asyncio.gather(*others)
    start = life.state_of(life.pods()[0]).start
    (service,) = life.items("infsvc")
    decisions = service["status"]["autoscaling"]["decisions"]
    ups = next((n for n, change in enumerate(decisions) if change["to"] < change["from"]), len(decisions))
    return {
        "first_s": round(first_s, 2),
        "start_s": round(start.total_s, 2),
        "overhead_s": round(first_s - start.total_s, 2),
        "eta_errors": [round(abs(eta_s - (first_s - at)) / (first_s - at), 3) for at, eta_s in etas if at < first_s],
        "scale_ups": ups,
        "not_served": sum(status != 200 for status in statuses),
    }


if __name__ == "__main__":
    main()
