"""Use of cards from NVML: a stand-in of the library, whose calls fill what they are given."""

# ruff: noqa: N802 - its functions have the driver's names

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from kvasir_runtime.server.observability.gpu_metrics import GpuMetrics

REFUSED = 3


class Nvml:
    """Two cards; the second reports no power."""

    def __init__(self, init: int = 0) -> None:
        self.init = init

    def nvmlInit_v2(self):
        return self.init

    def nvmlDeviceGetCount_v2(self, count):
        count._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, device):
        device._obj.value = index + 1
        return 0

    def nvmlDeviceGetUtilizationRates(self, device, use):
        use._obj.gpu = 50 * device.value
        return 0

    def nvmlDeviceGetMemoryInfo(self, device, memory):
        memory._obj.total, memory._obj.used = 80 << 30, device.value << 30
        return 0

    def nvmlDeviceGetPowerUsage(self, device, milliwatts):
        milliwatts._obj.value = 300_500
        return 0 if device.value == 1 else REFUSED


def values(load):
    registry = CollectorRegistry()
    registry.register(GpuMetrics(load))
    text = generate_latest(registry).decode()
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name.removeprefix("kvasir_gpu_"), sample.labels["gpu"]): sample.value for sample in found}


def test_each_card_has_what_it_reports():
    assert values(Nvml) == {
        ("utilization_fraction", "0"): 0.5,
        ("utilization_fraction", "1"): 1.0,
        ("memory_used_bytes", "0"): 1 << 30,
        ("memory_used_bytes", "1"): 2 << 30,
        ("memory_total_bytes", "0"): 80 << 30,
        ("memory_total_bytes", "1"): 80 << 30,
        ("power_watts", "0"): 300.5,
    }


def test_without_a_driver_there_are_no_series():
    def missing():
        raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    assert values(missing) == {}
    assert values(lambda: Nvml(init=9)) == {}
    assert values(object) == {}
