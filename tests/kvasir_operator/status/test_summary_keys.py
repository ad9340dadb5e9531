"""Keys of clients: how pods get them, and what is said while there is none."""

from fakes.manifests import service
from fakes.situations import findings, replica
from fakes.stages import pod_template
from kvasir_api.state import RuntimeState
from kvasir_operator.observed.settings import OperatorSettings
from kvasir_operator.status.conditions import conditions
from kvasir_operator.status.summary import summary

CLOSED = service(generation=3, auth={"secretName": "team"})


def test_the_kubelet_mounts_the_secret_and_the_runtime_reads_it_there():
    pod = pod_template(findings(obj=CLOSED).seen, "rev", OperatorSettings())["spec"]
    (container,) = pod["containers"]
    assert {"name": "keys", "secret": {"secretName": "team", "optional": True}} in pod["volumes"]
    # The whole directory: a subPath would keep the first version for ever.
    assert {"name": "keys", "mountPath": "/keys", "readOnly": True} in container["volumeMounts"]
    assert container["args"][container["args"].index("--api-key-file") + 1] == "/keys"
    assert not any("valueFrom" in env and "secretKeyRef" in env["valueFrom"] for env in container["env"])


def test_without_a_secret_nothing_of_it_is_in_the_pod():
    text = str(pod_template(findings().seen, "rev", OperatorSettings()))
    assert "keys" not in text
    assert "--api-key-file" not in text


def test_a_missing_secret_is_stalled_with_its_name():
    waits = replica("loading", name="a", reading=RuntimeState(phase="warming", locked="there is no key in /keys"))
    answer = summary(findings(waits, obj=CLOSED))
    assert (answer.mode, answer.reason) == ("stalled", "KeysMissing")
    assert (
        answer.message == "a rejects every request: there is no key in /keys (put an API key into Secret default/team)"
    )
    assert summary(findings(waits, replica("ready", name="b"), obj=CLOSED, wanted=2)).mode == "reconciling"


def test_keys_that_cannot_be_read_are_stalled_too():
    answer = summary(findings(replica("failed", refusal="KeysMissing: keys cannot be read: too long"), obj=CLOSED))
    assert (answer.mode, answer.reason) == ("stalled", "KeysMissing")


def test_a_secret_that_lost_its_keys_degrades_those_that_serve():
    locked = replica("ready", name="a", reading=RuntimeState(locked="there is no key in /keys"))
    found = findings(locked, replica("ready", name="b", reading=RuntimeState()), obj=CLOSED, wanted=2)
    (degraded,) = [c for c in conditions(found, summary(found)) if c.type == "Degraded"]
    assert degraded.reason == "KeysMissing"
    assert degraded.message == (
        "1 of 2 ready replicas reject every request: there is no key in /keys (put an API key into Secret default/team)"
    )
