"""What a spec says that the API server accepts and the operator cannot honour."""

import dataclasses

import pytest

from fakes.manifests import service
from fakes.stages import resolved
from kvasir_operator.observed.service import observed
from kvasir_operator.observed.settings import OperatorSettings

SETTINGS = OperatorSettings(model_dirs=("/srv",))


def test_a_time_zone_that_does_not_exist_is_named_with_its_path():
    there = {"start": "08:00", "durationMinutes": 60, "timeZone": "Europe/Berlin"}
    spec = {
        "model": {"uri": "file:///srv/a"},
        "autoscaling": {"schedules": [there, {**there, "timeZone": "Mars/Olympus"}]},
    }
    seen = observed(service(**spec), revisions=(), deployments=(), replicas=(), svc=None)
    found = resolved(seen, SETTINGS).violation
    assert found is not None
    assert found.reason == "InvalidSpec"
    assert found.message.startswith("spec.autoscaling.schedules[1].timeZone: Mars/Olympus is not in the tz database")


TIER = {"kvHostBytes": 1 << 30}
SIGNED = dataclasses.replace(SETTINGS, signs_calls=True)


@pytest.mark.parametrize(
    ("spec", "settings", "why"),
    [
        ({"runtime": {}}, SIGNED, "spec.runtime.kvHostBytes is 0"),
        ({"runtime": TIER}, SETTINGS, "the operator signs no calls (--lease-namespace)"),
        (
            {"runtime": TIER, "runtimeVersion": "0.1.0"},
            SIGNED,
            "spec.runtimeVersion pins 0.1.0, which may have no blocks to exchange",
        ),
        (
            {"runtime": TIER, "resources": {"accelerator": {"count": 1}}, "model": {"inspect": "Never"}},
            SIGNED,
            "replicas on accelerators exchange no blocks",
        ),
    ],
)
def test_a_role_that_no_replica_can_have_is_named_with_what_it_lacks(spec, settings, why):
    given = {**spec, "model": {"uri": "file:///srv/a", **spec.get("model", {})}, "roles": {"prefill": {}}}
    found = resolved(
        observed(service(**given), revisions=(), deployments=(), replicas=(), svc=None), settings
    ).violation
    assert (found.reason, found.message) == (
        "InvalidSpec",
        f"spec.roles.prefill: no replica can compute prompts for others, since {why}",
    )


def test_roles_change_no_pod():
    """Else a role would roll every replica."""

    def made(**spec):
        obj = service(model={"uri": "file:///srv/a"}, runtime=TIER, **spec)
        return resolved(observed(obj, revisions=(), deployments=(), replicas=(), svc=None), SIGNED)

    asked = made(roles={"prefill": {"maxReplicas": 2}})
    assert asked.violation is None
    assert asked.revision.id == made().revision.id
