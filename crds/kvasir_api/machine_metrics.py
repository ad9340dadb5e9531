"""Metrics of a replica's processes and cards, declared once, in the form of `metrics.py`."""

from dataclasses import replace
from typing import Final

from kvasir_api.metric import Metric

GPU: Final[tuple[Metric, ...]] = (
    Metric(name="kvasir_gpu_utilization_fraction", kind="gauge", help="Share of the time in which a kernel ran on the card, 0..1, as its driver counts it.", labels=("gpu",)),
    Metric(name="kvasir_gpu_memory_used_bytes", kind="gauge", help="Memory of the card that is taken, by any process.", labels=("gpu",)),
    Metric(name="kvasir_gpu_memory_total_bytes", kind="gauge", help="Memory of the card.", labels=("gpu",)),
    Metric(name="kvasir_gpu_power_watts", kind="gauge", help="Power that the card draws.", labels=("gpu",)),
)  # fmt: skip
"""Of the cards that a replica sees, from their driver; none on a CPU."""

ENGINE_PROCESS: Final = "kvasir_engine"
"""Before the names of PROCESS where they are of the engine's process and not of the API process."""
PROCESS: Final[tuple[Metric, ...]] = (
    Metric(name="process_cpu_seconds_total", kind="counter", help="Total user and system CPU time spent in seconds."),
    Metric(name="process_resident_memory_bytes", kind="gauge", help="Resident memory size in bytes."),
    Metric(name="process_virtual_memory_bytes", kind="gauge", help="Virtual memory size in bytes."),
    Metric(name="process_start_time_seconds", kind="gauge", help="Start time of the process since unix epoch in seconds."),
    Metric(name="process_open_fds", kind="gauge", help="Number of open file descriptors."),
    Metric(name="process_max_fds", kind="gauge", help="Maximum number of open file descriptors."),
)  # fmt: skip
"""Of the API process as prometheus_client counts them, and once more of the engine, behind ENGINE_PROCESS."""


def of_both_processes() -> tuple[Metric, ...]:
    """PROCESS of the API process and of the engine."""
    return (*PROCESS, *(replace(metric, name=f"{ENGINE_PROCESS}_{metric.name}") for metric in PROCESS))
