"""A replica that falls behind, on a fake cluster: what is written, how often, and after a restart."""

import pytest

from fakes.models import words
from fakes.operator_bench import FILE, KEY, Bench
from kvasir_api.state import DecodeTotals
from kvasir_api.status import ModelStatus
from kvasir_kube.kinds import ACCELERATOR_CLASS, INFERENCE_SERVICE

TICK_S = 10.0
COMPUTE = {"memoryGigabytesPerSecond": 3350, "fp16Teraflops": 989}
STATUS = ("apply/status", "inferenceservices")


class Loaded(Bench):
    """One ready replica on a class that says what it can, whose model was read before."""

    async def stand(self) -> None:
        spec = {"memory": "80Gi", "compute": COMPUTE}
        await self.cluster.put(ACCELERATOR_CLASS, {"metadata": {"name": "h100"}, "spec": spec})
        await self.put_service(resources={"accelerator": {"count": 1, "classes": ["h100"]}})
        known = ModelStatus(uri=FILE["model"]["uri"], facts=words(), inspected_at="2026-01-01T00:00:00Z")
        obj = self.cluster.stored(INFERENCE_SERVICE, *KEY)
        await self.cluster.put(INFERENCE_SERVICE, {**obj, "status": {"model": known.model_dump(by_alias=True)}})
        await self.turn()
        await self.put_pods(1)
        await self.turn()

    async def decode(self, seconds: float, *, step_s: float, busy: float = 1.0) -> None:
        """That many seconds of load by one stream of 1000 tokens. busy: share of them that goes into steps."""
        for _ in range(int(seconds / TICK_S)):
            steps = int(TICK_S * busy / step_s)
            had: DecodeTotals = self.reader.says["http://10.0.0.1:8001"].decoded
            self.say(
                0,
                decoded=DecodeTotals(
                    steps=had.steps + steps,
                    seconds=had.seconds + steps * step_s,
                    rows=had.rows + steps,
                    kv_tokens=had.kv_tokens + 1000 * steps,
                ),
            )
            await self.turn(TICK_S)

    @property
    def degraded(self) -> str:
        return "".join(c["message"] for c in self.status()["conditions"] if c["type"] == "Degraded")


@pytest.fixture
async def bench():
    found = Loaded()
    await found.stand()
    return found


async def test_two_stretches_below_the_share_degrade_and_one_above_cures(bench):
    await bench.decode(60, step_s=0.1)  # it settles
    await bench.decode(60, step_s=0.1)
    assert bench.degraded == ""
    assert bench.status()["capacity"]["streamTokensPerSecond"] == 10
    await bench.decode(60, step_s=0.1)
    assert bench.degraded.startswith(
        "1 of 1 ready replicas decode slower than 40 percent of what AcceleratorClass h100"
    )
    assert bench.status()["capacity"]["slowReplicas"] == ["p0"]
    bench.operator = bench.started()
    await bench.decode(10, step_s=0.1)
    assert "p0, as it was when it last had enough to do" in bench.degraded
    await bench.decode(120, step_s=0.007)
    assert bench.degraded == ""
    assert bench.status()["capacity"]["decodePercent"] == 80


async def test_speed_costs_few_writes_and_idleness_none(bench):
    await bench.decode(60, step_s=0.01)
    bench.writes()
    await bench.decode(300, step_s=0.01)
    assert bench.writes().count(STATUS) <= 5
    await bench.decode(620, step_s=0.01, busy=0.0)
    assert bench.writes() == []


async def test_too_little_load_says_nothing(bench):
    await bench.decode(620, step_s=0.05, busy=0.02)
    assert bench.degraded == ""
    assert "streamTokensPerSecond" not in bench.status()["capacity"]
