"""Use, memory and power of the cards that this process sees, from NVML when they are scraped.

Owned by RuntimeMetrics where the engine runs on a card. What a card does not report has no series.
"""

import ctypes
import logging
from collections.abc import Callable, Iterator
from typing import Any, Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvasir_api import machine_metrics
from kvasir_runtime import nvml as nvml_library
from kvasir_runtime.nvml import SUCCESS

LOG: Final = logging.getLogger(__name__)


class NvmlUtilization(ctypes.Structure):
    """nvmlUtilization_t, in percent."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class NvmlMemory(ctypes.Structure):
    """nvmlMemory_t, in bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class GpuMetrics(Collector):
    """load: gives NVML, or raises OSError where there is none; then there are no series."""

    def __init__(self, load: Callable[[], Any] = nvml_library.load) -> None:
        self._devices: list[ctypes.c_void_p] = []
        try:
            self._nvml = load()
            self._devices = nvml_library.devices(self._nvml)
        except (OSError, AttributeError) as error:
            LOG.debug("no driver reports the use of cards: %s", error)

    def collect(self) -> Iterator[Metric]:
        """Called by the registry for each scrape."""
        read = [self._read(device) for device in self._devices]
        for metric in machine_metrics.GPU:
            family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
            for index, values in enumerate(read):
                if metric.name in values:
                    family.add_metric([str(index)], values[metric.name])
            yield family

    def _read(self, device: ctypes.c_void_p) -> dict[str, float]:
        nvml, values = self._nvml, dict[str, float]()
        use, memory, milliwatts = NvmlUtilization(), NvmlMemory(), ctypes.c_uint()
        if nvml.nvmlDeviceGetUtilizationRates(device, ctypes.byref(use)) == SUCCESS:
            values["kvasir_gpu_utilization_fraction"] = use.gpu / 100
        if nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) == SUCCESS:
            values["kvasir_gpu_memory_used_bytes"] = float(memory.used)
            values["kvasir_gpu_memory_total_bytes"] = float(memory.total)
        if nvml.nvmlDeviceGetPowerUsage(device, ctypes.byref(milliwatts)) == SUCCESS:
            values["kvasir_gpu_power_watts"] = milliwatts.value / 1000
        return values
