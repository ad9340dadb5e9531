"""A status has what has a value, and nothing else."""

from hypothesis import given

from fakes.situations import findings, replica, situations
from kvasir_operator.status.compose import compose, document


def values(node, path=""):
    """Every value of a status that has no others inside, and every object and list that is empty, with its path."""
    inner = node.items() if isinstance(node, dict) else [("", item) for item in node] if isinstance(node, list) else ()
    if not inner:
        yield path, node
    for name, child in inner:
        yield from values(child, f"{path}.{name}" if name else f"{path}[]")


COUNTED = {
    *(f".{name}" for name in ("replicas", "readyReplicas", "desiredReplicas")),
    *(f".autoscaling.{name}" for name in ("desiredReplicas", "rawReplicas")),
    *(f".rollout.{name}" for name in ("updatedReplicas", "history[].replicas", "history[].readyReplicas")),
    *(f".coldStart.{name}Seconds" for name in ("schedule", "weights", "image", "load", "warm", "other")),
    *(f".capacity.{name}" for name in ("predictedKvTokens", "predictedRequests", "decodePercent")),
    *(f".capacity.classes[].{name}" for name in ("kvTokens", "requests")),
    ".coldStart.seconds",
}
"""Fields in which 0 is a count, and not a number that is unknown."""


@given(situations())
def test_a_status_has_only_what_has_a_value(found):
    for path, value in values(document(compose(found)[0])):
        assert value not in ("", [], {}), path
        assert value is not None, path
        assert value != 0 or path in COUNTED, path


def test_what_is_not_known_is_absent():
    written = document(compose(findings(current="", wanted=0, gateway_url=""))[0])
    assert set(written) == {
        "observedGeneration", "conditions", "selector", "replicas", "readyReplicas", "desiredReplicas", "modelName",
        "rollout",
    }  # fmt: skip
    assert written["rollout"] == {"updatedReplicas": 0}


def test_a_state_without_replicas_and_the_only_revision_are_absent():
    done = document(compose(findings(replica("ready"), replica("ready", name="b"), wanted=2))[0])
    assert done["counts"] == {"ready": 2}
    assert "history" not in done["rollout"]
