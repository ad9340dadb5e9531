"""The rate that a pod sustains in closed form, against the pod itself."""

import pytest

from kvasir_operator.simulation import traffic
from kvasir_operator.simulation.fleet import Fleet
from kvasir_operator.simulation.pod_capacity import pod_capacity
from kvasir_operator.simulation.pod_model import PodProfile
from kvasir_operator.simulation.traffic import LengthMix

SLOTS = PodProfile(kv_tokens=10**6, slots=32, prefill_tokens_per_s=20_000, step_base_s=0.02, step_slope_s=0.0005)
CACHE = PodProfile(kv_tokens=12_000, slots=512, prefill_tokens_per_s=20_000, step_base_s=0.02, step_slope_s=0.0005)
PROMPTS = PodProfile(kv_tokens=10**6, slots=512, prefill_tokens_per_s=2_000, step_base_s=0.02, step_slope_s=0.0001)
MIX = LengthMix(prompt=400, output=100, spread=0.3)


class Fixed:
    """Always the same number."""

    name, period_s = "fixed", 60.0

    def wanted(self, view):
        return 1


@pytest.mark.parametrize("profile", [SLOTS, CACHE, PROMPTS])
@pytest.mark.parametrize(("share", "keeps_up"), [(0.85, True), (1.3, False)])
def test_below_the_capacity_no_queue_grows_and_above_it_one_does(profile, share, keeps_up):
    rate = share * pod_capacity(profile, MIX).requests_per_s
    coming = traffic.requests(lambda _: rate, MIX, seconds=900, most_rate=rate, seed=3)
    done = Fleet(profile, Fixed(), replicas=1, most=1).run(coming, seconds=900)
    late = [a for a in done.requests if a.request.at > 600]
    waits = [(a.first_at if a.first_at >= 0 else 900) - a.request.at for a in late]
    assert (sorted(waits)[len(waits) // 2] < 5.0) is keeps_up


def test_an_objective_between_tokens_lowers_the_capacity():
    free, bound = pod_capacity(SLOTS, MIX), pod_capacity(SLOTS, MIX, itl_s=0.028)
    assert bound.requests_per_s < free.requests_per_s
    assert SLOTS.step_s(bound.batch) < 0.028
