"""The rate of requests that one pod sustains, in closed form, by whatever is scarce: cache, slots, prompts or steps."""

from dataclasses import dataclass
from typing import Final

from kvasir_operator.scaling.demand import ALLOCATOR_FRACTION
from kvasir_operator.simulation.pod_model import PREFILL_SHARE, PodProfile
from kvasir_operator.simulation.traffic import LengthMix

ROUNDS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class PodCapacity:
    """requests_per_s: at most. batch: requests in flight then."""

    requests_per_s: float
    batch: float


def pod_capacity(profile: PodProfile, mix: LengthMix, *, itl_s: float = 0.0) -> PodCapacity:
    """The largest rate at which neither prompts nor sequences grow without end. itl_s: bound of a step, 0 for none."""
    low, high = 0.0, PREFILL_SHARE * profile.prefill_tokens_per_s / _prompt(mix)
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        low, high = (middle, high) if _batch(profile, mix, middle, itl_s) is not None else (low, middle)
    return PodCapacity(requests_per_s=low, batch=_batch(profile, mix, low, itl_s) or 1.0)


def _prompt(mix: LengthMix) -> float:
    return mix.prompt - (mix.shared if mix.groups else 0)


def _batch(profile: PodProfile, mix: LengthMix, rate: float, itl_s: float) -> float | None:
    """Sequences in flight at a rate; None where there is no such number within the pod's bounds."""
    decode_share = 1 - rate * _prompt(mix) / profile.prefill_tokens_per_s
    spare = decode_share - rate * mix.output * profile.step_slope_s
    if spare <= 0:
        return None
    batch = rate * mix.output * profile.step_base_s / spare
    held = _prompt(mix) + mix.output / 2
    within = batch <= profile.slots and batch * held <= ALLOCATOR_FRACTION * profile.kv_tokens
    slow = itl_s and profile.step_s(batch) / decode_share > itl_s
    return batch if within and not slow else None
