"""What a spec says that the API server accepts and the operator cannot honour."""

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
