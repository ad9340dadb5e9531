"""What the status tells of replicas that serve, on a real API server."""

import msgspec
import pytest
import yaml

from fakes.life import SAMPLE
from fakes.operator_rig import kubectl
from kvasir_api import names
from kvasir_api.state import SpeculationState

SCREEN = 60
"""Lines."""
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]


async def test_slower_kernels_degrade_the_service_until_they_are_gone(rig):
    await rig.apply()
    await rig.until_condition("Ready")
    (pod,) = await rig.until_pods(1)
    pod.set_state(device="cpu", kernels="cpu", fallback="KVASIR_KERNELS=torch")
    degraded = await rig.until_condition("Degraded", reason="SlowerKernels")
    assert degraded["message"] == "1 of 1 ready replicas compute with slower kernels (cpu), as KVASIR_KERNELS=torch"
    assert (await rig.status())["capacity"]["device"] == "cpu, cpu (KVASIR_KERNELS=torch)"
    pod.set_state(kernels="cpu avx2", fallback="")

    async def cured():
        status = await rig.status()
        return status["capacity"]["device"] == "cpu, cpu avx2" and "Degraded" not in str(status["conditions"])

    await rig.until(cured, lambda: rig.dump("tiny"))


async def test_a_healthy_service_fits_on_one_screen(rig):
    await rig.apply(replicas=2, resources={"cpu": "2", "memory": "8Gi"})
    await rig.until_condition("Ready", reason="AllReplicasReady")

    async def measured():
        return (await rig.status()).get("capacity", {}).get("kvTokens")

    await rig.until(measured, lambda: rig.dump("tiny"))
    shown = kubectl(rig.control, "describe", "infsvc", "tiny", f"--namespace={rig.namespace}")
    assert len(shown.splitlines()) <= SCREEN, shown


async def test_of_a_sample_that_scales_all_but_the_spec_fits_on_one_screen(rig):
    """Whatever a user has written there is shown as well."""
    sample = next(item for item in yaml.safe_load_all(SAMPLE.read_text()) if item["kind"] == names.KIND)
    await rig.apply(**{name: part for name, part in sample["spec"].items() if name not in ("model", "drain")})
    await rig.until_condition("Ready", reason="AllReplicasReady")

    async def measured():
        status = await rig.status()
        return status.get("capacity", {}).get("kvTokens") and "autoscaling" in status

    await rig.until(measured, lambda: rig.dump("tiny"))
    shown = kubectl(rig.control, "describe", "infsvc", "tiny", f"--namespace={rig.namespace}")
    head, _, rest = shown.partition("\nSpec:\n")
    status = rest[rest.index("\nStatus:\n") :]
    assert len((head + status).splitlines()) <= SCREEN - 10, shown


async def test_a_value_that_is_gone_leaves_the_status(rig):
    """Server-side apply removes what the operator applied before and does not apply now."""
    await rig.apply(autoscaling={"minReplicas": 1})
    await rig.until_condition("Ready", reason="AllReplicasReady")

    async def decided():
        return (await rig.status()).get("autoscaling", {}).get("desiredReplicas") == 1

    await rig.until(decided, lambda: rig.dump("tiny"))
    await rig.apply(replicas=1)

    async def gone():
        status = await rig.status()
        return bool(status) and "autoscaling" not in status

    await rig.until(gone, lambda: rig.dump("tiny"))
    await rig.apply(replicas=0)
    await rig.until_condition("Ready", reason="ScaledToZero")
    await rig.until_pods(0)

    async def empty():
        status = await rig.status()
        return (status.get("replicas"), status.get("counts")) == (0, None)

    await rig.until(empty, lambda: rig.dump("tiny"))


async def test_drafts_that_are_mostly_rejected_degrade_the_service_until_they_pay(rig):
    """The condition says what is kept and what to do; the drafts behind it are those of the last seconds."""
    await rig.apply(runtime={"speculation": "suffix"})
    await rig.until_condition("Ready")
    (pod,) = await rig.until_pods(1)

    async def drafted(num_tokens, fraction):
        """So many more, of which the fraction is kept."""
        await rig.heard()
        before = pod.state.totals
        totals = msgspec.structs.replace(
            before,
            drafted_tokens=before.drafted_tokens + num_tokens,
            accepted_tokens=before.accepted_tokens + int(num_tokens * fraction),
        )
        told = SpeculationState(drafter="suffix", draft_tokens=6.0, acceptance_fraction=fraction)
        pod.set_state(totals=totals, speculation=told)

    await drafted(10_000, 0.02)
    degraded = await rig.until_condition("Degraded", reason="LowAcceptance")
    assert degraded["message"] == (
        "of the tokens that replicas draft ahead 2% are kept; runtime.speculation: auto drafts only while that pays,"
        " suffix in every step"
    )
    await drafted(100_000, 0.8)

    async def cured():
        status = await rig.status()
        return status["capacity"].get("acceptedDraftPercent") == 80 and "Degraded" not in str(status["conditions"])

    await rig.until(cured, lambda: rig.dump("tiny"))
