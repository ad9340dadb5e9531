"""Refusals as a real API server words them: which of them no retry cures."""

import pytest

from kvasir_operator.status.refusals import refusal, without_pod_name

QUOTA = 'pods "tiny-1" is forbidden: exceeded quota: few, requested: pods=1, used: pods=2, limited: pods=2'
RIGHT = 'deployments.apps is forbidden: User "x" cannot create resource "deployments" in API group "apps"'
SECURITY = 'pods "tiny-1" is forbidden: violates PodSecurity "restricted:latest": hostPath volumes'
INVALID = 'Service "tiny" is invalid: spec.ports[0].port: Invalid value: 0: must be between 1 and 65535'
POLICY = "deployments.apps \"tiny\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no"
WEBHOOK = 'admission webhook "check.example" denied the request: no'
AWAY = 'Internal error occurred: failed calling webhook "check.example": connection refused'
GOING = 'pods "tiny-1" is forbidden: unable to create new content in namespace a because it is being terminated'
LIMITS = 'pods "tiny-1" is forbidden: failed quota: few: must specify limits.cpu for: runtime'


@pytest.mark.parametrize(
    ("words", "status", "reason"),
    [
        (QUOTA, 403, "QuotaExceeded"),
        (LIMITS, 403, "QuotaExceeded"),
        (RIGHT, 403, "Forbidden"),
        (SECURITY, 403, "Forbidden"),
        (POLICY, 403, "Rejected"),
        (POLICY, 422, "Rejected"),
        (INVALID, 422, "Rejected"),
        (WEBHOOK, 400, "Rejected"),
        ("request is too large", 413, "Rejected"),
        # of a Deployment's pods only the words are known
        (QUOTA, 0, "QuotaExceeded"),
        (SECURITY, 0, "Forbidden"),
        (WEBHOOK, 0, "Rejected"),
        # what passes
        (AWAY, 500, ""),
        (AWAY, 0, ""),
        (GOING, 403, ""),
        (GOING, 0, ""),
        ("the object has been modified", 409, ""),
        ("too many requests", 429, ""),
        ("no answer within 15 s", 0, ""),
    ],
)
def test_what_a_refusal_means(words, status, reason):
    assert refusal(words, status=status) == reason


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (QUOTA, "another pod is forbidden: exceeded quota: few, requested: pods=1, used: pods=2, limited: pods=2"),
        (SECURITY, 'another pod is forbidden: violates PodSecurity "restricted:latest": hostPath volumes'),
        ('Pod "tiny-1" is invalid: spec: Forbidden', "another pod is invalid: spec: Forbidden"),
        # a name that exists, or none
        (INVALID, INVALID),
        (WEBHOOK, WEBHOOK),
        ("", ""),
    ],
)
def test_a_refusal_names_no_pod_that_does_not_exist(words, said):
    assert without_pod_name(words) == said
    assert refusal(said) == refusal(words)
