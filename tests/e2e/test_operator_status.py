"""What the status tells of replicas that serve, on a real API server."""

import pytest

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
