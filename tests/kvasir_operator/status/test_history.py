"""Revisions as the status tells them: newest first, bounded, with what each changed."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.manifests import service
from fakes.situations import findings
from kvasir_api.status import InferenceServiceStatus
from kvasir_operator.observed.replica import Replica
from kvasir_operator.observed.service import Revision, observed
from kvasir_operator.status.compose import compose, document
from kvasir_operator.status.history import changed, history


def seen(*revisions, pods=()):
    found = observed(service(), revisions=(), deployments=(), replicas=pods, svc=None)
    return replace(found, revisions=revisions)


def revision(number, **inputs):
    return Revision(id=f"r{number}", number=number, inputs=inputs, template={})


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ({"runtime": {"blockSize": 32}}, {"runtime": {"blockSize": 32}}, ""),
        ({"runtime": {}}, {"runtime": {"blockSize": 32}}, "runtime.blockSize"),
        ({"runtime": {"blockSize": 32}}, {}, "runtime.blockSize"),
        (
            {"model": {"uri": "a"}, "drain": {"timeoutSeconds": 1}},
            {"model": {"uri": "b"}},
            "drain.timeoutSeconds, model.uri",
        ),
        ({"pod": {"tolerations": [{"key": "a"}]}}, {"pod": {"tolerations": [{"key": "b"}]}}, "pod.tolerations"),
    ],
)
def test_what_a_revision_changed(before, after, words):
    assert changed(before, after) == words


def test_newest_first_with_their_replicas():
    pods = [
        Replica(name="a", revision="r1", phase="ready"),
        Replica(name="b", revision="r2", phase="loading"),
        Replica(name="c", revision="r2", phase="ready"),
        Replica(name="d", revision="r2", phase="ready", terminating=True),
    ]
    told = history(seen(revision(1), revision(2, runtime={"blockSize": 32}), pods=pods))
    assert [(r.name, r.number, r.replicas, r.ready_replicas, r.changed) for r in told] == [
        ("r2", 2, 2, 1, "runtime.blockSize"),
        ("r1", 1, 1, 1, ""),
    ]


@pytest.mark.parametrize(("asked", "names"), [(3, ["r3", "r2", "r1"]), (2, ["r2", "r1"]), (None, ["r2", "r1"])])
def test_one_that_is_about_to_be_made_is_told_already(asked, names):
    told = history(seen(revision(1), revision(2)), asked and revision(asked))
    assert [r.name for r in told] == names


def test_an_old_one_that_is_requested_again_is_the_newest():
    told = history(seen(revision(1), revision(2)), replace(revision(1), number=3))
    assert [(r.name, r.number) for r in told] == [("r1", 3), ("r2", 2)]


@given(st.integers(0, 20), st.text(max_size=900))
def test_whatever_there_was_a_status_holds_it(count, name):
    found = seen(*(revision(n, runtime={name: n}) for n in range(1, count + 1)))
    status, _ = compose(findings(obj=None, current="", seen=found))
    assert [r.number for r in status.rollout.history] == (
        list(range(count, max(0, count - 8), -1)) if count > 1 else []
    )
    assert InferenceServiceStatus.model_validate(document(status)) == status
