"""How many replicas compute prompts for the others: by rate and queue of prompts, within bounds and the KV cache."""

import pytest

from fakes.load import NOW, steady
from kvasir_api.roles import PrefillRole
from kvasir_operator.scaling.policy import ScalingPolicy
from kvasir_operator.scaling.prefill_replicas import NOTHING, prefill_replicas
from kvasir_operator.scaling.window import EMPTY

ROLE = PrefillRole(min_replicas=1, max_replicas=3)
QUIET = {"pinned_tokens": 0, "replicas": 6}
COME = {"arrivals": 4, "ended": 4, "running": 4, **QUIET}
"""Each two seconds; a replica computes 1000 tokens a second, of which three quarters count."""

THREE = "prompts that come and wait require 3"


def decided(window, role=ROLE, before=None, now=NOW):
    return prefill_replicas(role, window, before or NOTHING, ScalingPolicy(), now=now)


@pytest.mark.parametrize(
    ("load", "replicas", "why"),
    [
        (QUIET, 1, "prompts that come and wait require 0; spec.roles.prefill.minReplicas is 1"),
        ({**COME, "prompt_tokens": 3000}, 2, "prompts that come and wait require 2"),
        (
            {**COME, "prompt_tokens": 9000},
            3,
            "prompts that come and wait require 6; spec.roles.prefill.maxReplicas is 3",
        ),
        # 14,000 tokens wait, to be computed within ten seconds
        ({**QUIET, "waiting": 3, "waiting_tokens": 14_000}, 2, "prompts that come and wait require 2"),
        # running answers fill four of six caches up to 85 %
        (
            {**COME, "prompt_tokens": 4500, "pinned_tokens": 3300},
            2,
            f"{THREE}; the KV cache of running answers leaves 2",
        ),
        (
            {**COME, "prompt_tokens": 4500, "pinned_tokens": 6000},
            1,
            f"{THREE}; the KV cache of running answers leaves 0; spec.roles.prefill.minReplicas is 1",
        ),
    ],
)
def test_the_number_follows_prompts_within_its_bounds(load, replicas, why):
    found = decided(steady(**load))
    assert (found.replicas, found.why) == (replicas, why)


def test_a_new_service_has_the_least():
    assert decided(EMPTY) == decided(steady(**QUIET, rate=0.0))
    assert (decided(EMPTY).replicas, decided(EMPTY).why) == (1, "no prompt rate is measured")


@pytest.mark.parametrize(("present", "replicas"), [(0, 1), (2, 2), (9, 3)])
def test_without_a_measured_rate_replicas_keep_the_role_within_its_bounds(present, replicas):
    """As while all pods are silent."""
    assert decided(steady(**QUIET, rate=0.0, prefill=present)).replicas == replicas


def test_a_lull_takes_no_role_away_before_the_window_is_over():
    busy = decided(steady(**COME, prompt_tokens=3000))
    lull = decided(steady(**QUIET), before=busy, now=NOW + 10)
    assert (busy.replicas, lull.replicas) == (2, 2)
    assert decided(steady(**QUIET), before=lull, now=NOW + 301).replicas == 1


def test_an_operator_that_begins_keeps_the_roles_that_there_are():
    first = decided(steady(**QUIET, prefill=2))
    assert (first.replicas, decided(steady(**QUIET), before=first, now=NOW + 10).replicas) == (2, 2)


def test_answers_at_the_edge_of_a_cache_move_no_role_to_and_fro():
    """Four caches are filled, then a little less, again and again: the role is given back once."""
    prompts = {**COME, "prompt_tokens": 9000}
    full, less = steady(**{**prompts, "pinned_tokens": 3450}), steady(**{**prompts, "pinned_tokens": 2500})
    policy = ScalingPolicy(down_window_s=10.0)
    found, counts = NOTHING, []
    for turn in range(6):
        found = prefill_replicas(ROLE, full if turn % 2 else less, found, policy, now=NOW + turn)
        counts.append(found.replicas)
    assert counts == [3, 1, 1, 1, 1, 1]
    still = prefill_replicas(ROLE, less, found, policy, now=NOW + 14)
    assert (still.replicas, prefill_replicas(ROLE, less, still, policy, now=NOW + 15).replicas) == (1, 3)
