"""How long a pod may start and end, by the model's size and by the one field that a user sets."""

import pytest

from fakes.manifests import service
from fakes.stages import pod_template
from kvasir_api.status import MOST
from kvasir_operator.desired.accelerator import placement
from kvasir_operator.desired.probes import model_bytes, probes, startup_s
from kvasir_operator.observed.service import observed
from kvasir_operator.observed.settings import OperatorSettings
from kvasir_runtime.server.ops_app import MOST_WAIT_S

GB = 10**9
H100 = [{"metadata": {"name": "h100"}, "spec": {"memory": "80G"}}]


@pytest.mark.parametrize(
    ("size", "seconds"),
    [(0, 3600), (100_000_000, 904), (1 * GB, 940), (16 * GB, 1540), (140 * GB, 6500), (1400 * GB, 21_600)],
)
def test_a_larger_model_may_start_for_longer(size, seconds):
    assert startup_s(size) == seconds


@pytest.mark.parametrize(
    ("size", "download", "seconds"),
    [
        (GB, GB, 940 + 100),
        (0, 16 * GB, 3600 + 1600),
        (400 * GB, 400 * GB, 16_900 + 40_000),
        (1400 * GB, 1400 * GB, 21_600 + 140_000),
    ],
)
def test_a_start_may_take_as_long_as_a_slow_download_besides(size, download, seconds):
    assert startup_s(size, download) == seconds


def test_a_probe_of_the_largest_download_is_one_that_a_runtime_answers():
    path = probes(1400 * GB, MOST)["startupProbe"]["httpGet"]["path"]
    assert float(path.partition("wait_s=")[2]) < MOST_WAIT_S


def seen(classes=(), **spec):
    return observed(service(**spec), revisions=(), deployments=(), replicas=(), svc=None, classes=classes)


@pytest.mark.parametrize(
    ("found", "size"),
    [
        (seen(resources={"memory": "8G"}), 8 * GB),
        (seen(H100, resources={"accelerator": {"count": 1, "classes": ["h100"]}}), 80 * GB),
        (seen(resources={"accelerator": {"count": 1}}), 0),
    ],
)
def test_what_is_not_forecast_is_bounded_by_the_memory_that_holds_it(found, size):
    assert model_bytes(found, placement(found)) == size


@pytest.mark.parametrize(("timeout_s", "grace_s"), [(0, 30), (45, 75), (600, 630), (86_400, 86_430)])
def test_one_field_rules_the_end_of_a_pod(timeout_s, grace_s):
    spec = pod_template(seen(drain={"timeoutSeconds": timeout_s}), "rev", OperatorSettings())["spec"]
    args = spec["containers"][0]["args"]
    assert spec["terminationGracePeriodSeconds"] == grace_s
    assert args[args.index("--drain-timeout") + 1] == str(timeout_s)


def test_the_probes_of_a_pod():
    container = pod_template(seen(resources={"memory": "8G"}), "rev", OperatorSettings())["spec"]["containers"][0]
    found = {
        name: (
            container[name]["httpGet"]["path"],
            container[name]["periodSeconds"],
            container[name]["failureThreshold"],
        )
        for name in ("startupProbe", "readinessProbe", "livenessProbe")
    }
    assert found == {
        "startupProbe": ("/startupz?wait_s=97", 5, 12),
        "readinessProbe": ("/readyz", 1, 2),
        "livenessProbe": ("/livez", 10, 5),
    }
    liveness = container["livenessProbe"]
    silent_s = liveness["periodSeconds"] + liveness["failureThreshold"] * liveness["timeoutSeconds"]
    assert silent_s + liveness["terminationGracePeriodSeconds"] <= 90, "a hanging process is started again by then"
    startup = container["startupProbe"]
    assert (startup["initialDelaySeconds"], startup["timeoutSeconds"]) == (2, 102)


@pytest.mark.parametrize("size", [0, GB, 140 * GB])
def test_a_hanging_start_is_killed_at_its_limit_and_its_probe_is_answered_before_the_kubelet_gives_up(size):
    startup = probes(size)["startupProbe"]
    limit_s, timeout_s = startup_s(size), startup["timeoutSeconds"]
    assert limit_s <= startup["failureThreshold"] * timeout_s < limit_s + startup["failureThreshold"]
    assert startup["httpGet"]["path"] == f"/startupz?wait_s={timeout_s - 5}"
    assert startup["failureThreshold"] * startup["periodSeconds"] >= 60, "time to begin to listen"
