"""What each field of a spec that shapes no pod changes on a cluster: two services that differ in it alone, what their
pods say, and what their statuses then show. Read by the test that shows it and by the one that requests every field.
"""

from dataclasses import dataclass, field
from typing import Any, Final, Literal

from kvasir_api.state import KvState, MeasuredRates, ServedTotals
from kvasir_kube.kinds import Json

Look = Literal["desired", "new", "old", "phase", "stalled", "class", "fit"]
SMALL: Final[Json] = {"resources": {"cpu": "100m", "memory": "64Mi"}}
EDIT: Final[Json] = {"runtime": {"blockSize": 32}}
IDLE: Final[Json] = {"kv": KvState(capacity_tokens=1000, free_tokens=1000)}
TWO_AND_A_HALF: Final[Json] = {
    **IDLE,
    "waiting": 1,
    "waiting_uncached_tokens": 150_000,
    "rates": MeasuredRates(prefill_tokens_per_s=1000.0),
}
"""Prompts that one replica computes in 150 s: within 60 s that takes two and a half."""
BAD: Final[Json] = {"served": ServedTotals(answered=40, failed=20)}
FAST: Final[Json] = {"served": ServedTotals(answered=100, ttft_s=10.0, first_tokens=100)}
SLOW: Final[Json] = {"served": ServedTotals(answered=100, ttft_s=99.0, first_tokens=99)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """values: of the field. beside: what else the spec says from the beginning, then: from when it is ready.

    The field itself is there from the beginning, or only then with later. replicas: at first. says: what the first pod
    says then; new_says: what a new revision's pods say; serve: whether those get ready. look: what is compared; shows:
    what it is for either value, at the same moment.
    """

    values: tuple[Any, Any]
    look: Look
    shows: tuple[Any, Any]
    beside: Json = field(default_factory=dict)
    then: Json = field(default_factory=dict)
    later: bool = True
    replicas: int = 1
    says: Json = field(default_factory=dict)
    new_says: Json = field(default_factory=dict)
    serve: bool = False


def _grows(values: tuple[int, int], shows: tuple[int, int] = (2, 3), **beside: Any) -> Effect:
    """Replicas under a load that requests three."""
    return Effect(
        values=values, look="desired", shows=shows, says=TWO_AND_A_HALF, then={"autoscaling": {"scaleUp": beside}}
    )


def _shrinks(values: tuple[int, int], shows: tuple[int, int], *, replicas: int, **beside: Any) -> Effect:
    """Replicas without any load."""
    down = {"windowSeconds": 0, "percent": 100, "periodSeconds": 1, **beside}
    return Effect(
        values=values,
        look="desired",
        shows=shows,
        replicas=replicas,
        says=IDLE,
        then={"autoscaling": {"scaleDown": down}},
    )


def _scales(values: tuple[Any, Any], shows: tuple[int, int], *, replicas: int = 1, says: Json) -> Effect:
    # Longer than that over which pinned tokens are averaged, or what was before would count.
    down = {"scaleDown": {"windowSeconds": 6, "percent": 100, "periodSeconds": 1}}
    return Effect(values=values, look="desired", shows=shows, replicas=replicas, says=says, then={"autoscaling": down})


def _rolls(values: tuple[Any, Any], look: Look, shows: tuple[Any, Any], *, replicas: int = 1, **more: Any) -> Effect:
    """A change of the pods' options, which rolls them; the field is told together with it."""
    beside = more.pop("rollout", {})
    return Effect(values=values, look=look, shows=shows, replicas=replicas, then={**EDIT, "rollout": beside}, **more)


def pinned(tokens: int) -> Json:
    """A reading with so many of 1000 tokens pinned."""
    return {"kv": KvState(capacity_tokens=1000, pinned_tokens=tokens, free_tokens=1000 - tokens)}


ON_GPU: Final[Json] = {"model": {"inspect": "Never"}, "resources": {"accelerator": {"count": 1}}}


def _classed(values: tuple[Any, Any], shows: tuple[str, str], beside: Json = ON_GPU) -> Effect:
    """A change of what is asked of an accelerator's class, told of a service that has no replica yet."""
    return Effect(values=values, look="class", shows=shows, beside=beside, later=False, replicas=0)


EFFECTS: Final[dict[str, Effect]] = {
    "replicas": Effect(values=(1, 2), look="desired", shows=(1, 2)),
    "autoscaling.minReplicas": _scales((1, 2), (1, 2), says=IDLE),
    "autoscaling.maxReplicas": _scales((2, 3), (2, 3), says=TWO_AND_A_HALF),
    "autoscaling.kvTargetPercent": _scales((85, 75), (1, 2), says=pinned(700)),
    "autoscaling.kvReleasePercent": _scales((70, 40), (1, 2), replicas=2, says=pinned(600)),
    "autoscaling.backlogHorizonSeconds": _scales((100, 60), (2, 3), says=TWO_AND_A_HALF),
    "autoscaling.mode": _scales(("Active", "Paused"), (3, 1), says=TWO_AND_A_HALF),
    # 40,000 tokens are 40 s for one replica: it does them within the horizon, and not within ten seconds.
    "autoscaling.ttftMilliseconds": _scales(
        (0, 10_000), (1, 4), says={**TWO_AND_A_HALF, "waiting_uncached_tokens": 40_000}
    ),
    "autoscaling.scaleUp.percent": _grows((100, 500), pods=1, periodSeconds=3600),
    "autoscaling.scaleUp.pods": _grows((1, 4), percent=1, periodSeconds=3600),
    "autoscaling.scaleUp.periodSeconds": _grows((3600, 1), pods=1, percent=1),
    "autoscaling.scaleDown.windowSeconds": _shrinks((600, 0), (2, 1), replicas=2),
    "autoscaling.scaleDown.percent": _shrinks((25, 100), (2, 1), replicas=3, periodSeconds=3600),
    "autoscaling.scaleDown.periodSeconds": _shrinks((3600, 1), (2, 1), replicas=3, percent=25),
    "rollout.strategy": _rolls(("Surge", "InPlace"), "old", (2, 1), replicas=2),
    "rollout.maxSurge": _rolls((1, 3), "new", (1, 2), replicas=2),
    "rollout.maxUnavailable": _rolls((1, 2), "old", (2, 1), replicas=3, rollout={"strategy": "InPlace"}),
    "rollout.steps[].replicaPercent": _rolls(
        ([{"replicaPercent": 25}], [{"replicaPercent": 75}]), "new", (1, 3), replicas=4, rollout={"maxSurge": 4}
    ),
    "rollout.steps[].pauseSeconds": _rolls(
        ([{"replicaPercent": 50}], [{"replicaPercent": 50, "pauseSeconds": 3600}]),
        "phase",
        ("", "Canary"),
        replicas=2,
        serve=True,
    ),
    "rollout.analysis.minRequests": _rolls((10, 1000), "phase", ("Held", "Progressing"), new_says=BAD),
    "rollout.analysis.maxErrorPercent": _rolls(
        (5, 60), "phase", ("Held", "Progressing"), new_says=BAD, rollout={"analysis": {"minRequests": 10}}
    ),
    "rollout.analysis.maxTtftRegressionPercent": _rolls(
        (0, 50), "phase", ("Progressing", "Held"), says=FAST, new_says=SLOW
    ),
    "rollout.autoRollback": _rolls(
        (False, True), "phase", ("Held", "RolledBack"), new_says=BAD, rollout={"analysis": {"minRequests": 10}}
    ),
    "rollout.paused": _rolls((False, True), "phase", ("Progressing", "Paused")),
    "rollout.progressDeadlineSeconds": _rolls((1800, 10), "stalled", ("", "ProgressDeadlineExceeded")),
    "model.inspect": Effect(values=("Never", "Always"), look="fit", shows=("", "Unknown"), later=False),
    "resources.accelerator.classes": _classed((["small-{id}"], ["large-{id}"]), ("small-{id}", "large-{id}")),
    "resources.accelerator.minMemory": _classed(("3Gi", "5Gi"), ("small-{id}", "large-{id}")),
    "resources.accelerator.spot": _classed(
        (False, True),
        ("small-{id}", "spot-{id}"),
        {**ON_GPU, "resources": {"accelerator": {"count": 1, "minMemory": "3Gi"}}},
    ),
}
MODES: Final = "tests/e2e/test_operator_modes.py::"
ELSEWHERE: Final = {
    "autoscaling.idleSeconds": "tests/e2e/test_operator_zero.py"
    "::test_a_service_goes_to_zero_and_the_next_requests_start_it_again",
    "autoscaling.itlMilliseconds": f"{MODES}test_slow_steps_require_smaller_batches",
    **{
        f"autoscaling.schedules[].{name}": f"{MODES}test_a_schedule_sets_other_bounds_while_it_is_in_force"
        for name in ("start", "durationMinutes", "days", "timeZone", "minReplicas", "maxReplicas")
    },
    "parallelism": "tests/kvasir_operator/loop/test_operator_groups.py"
    "::test_a_model_too_large_for_a_pod_gets_replicas_of_several_where_the_operator_chooses",
    "reductions": "tests/e2e/test_operator_reductions.py::test_a_replica_that_does_not_fit_is_made_smaller",
    "resources.accelerator.fallbackSeconds": "tests/e2e/test_operator_classes.py::test_a_full_class_is_passed_over",
    "rollout.reclass": "tests/e2e/test_operator_classes.py"
    "::test_a_cheaper_class_moves_replicas_only_where_that_is_asked",
    "roles.prefill.minReplicas": "tests/e2e/test_operator_roles.py"
    "::test_pods_get_the_role_and_another_one_follows_one_that_is_lost",
    "roles.prefill.maxReplicas": "tests/e2e/test_operator_roles.py::test_as_many_as_the_prompts_that_wait_require",
    "rollout.inPlaceAfterSeconds": "tests/e2e/test_operator_rollout.py"
    "::test_a_surge_without_a_spare_accelerator_goes_in_place_and_surges_again",
    "rollout.promote": "tests/e2e/test_operator_rollout.py::test_a_bad_canary_is_rolled_back_and_may_be_promoted",
    "rollout.abort": "tests/e2e/test_operator_rollout.py"
    "::test_a_paused_rollout_stands_still_and_an_aborted_one_goes_back",
}
"""Fields whose value is only known while the test runs, or that need a whole story, with the test that tells it."""
