"""How evenly the load lies on replicas. Called by `window.py`."""

from collections.abc import Mapping
from statistics import fmean

from kvasir_api.state import RuntimeState


def imbalance(readings: Mapping[str, RuntimeState]) -> tuple[float, str]:
    """By how much of its capacity the fullest replica is fuller than the others on the mean, 0..1, and its name; 0 of
    fewer than two. readings: by the name of the replica."""
    if len(readings) < 2:
        return 0.0, ""
    full = {name: _fullness(reading) for name, reading in readings.items()}
    busiest = max(sorted(full), key=full.__getitem__)
    others = fmean([share for name, share in full.items() if name != busiest])
    return full[busiest] - others, busiest


def _fullness(reading: RuntimeState) -> float:
    """The larger share of KV cache and slots that requests take, those that wait included."""
    cache = reading.kv.pinned_tokens / reading.kv.capacity_tokens if reading.kv.capacity_tokens else 0.0
    slots = (reading.running + reading.waiting) / reading.max_sequences if reading.max_sequences else 0.0
    return min(1.0, max(cache, slots))
