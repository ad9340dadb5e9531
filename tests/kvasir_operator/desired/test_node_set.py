"""Where pods of a replica are to be: near to their node 0."""

from dataclasses import replace

import pytest

from fakes.manifests import service
from fakes.stages import resolved
from kvasir_operator.desired import node_set
from kvasir_operator.desired.node_set import ZONE
from kvasir_operator.observed.replica import Replica
from kvasir_operator.observed.service import Observed, observed

PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def seen(*spread: str, nnodes: int = 2, domains: tuple[tuple[str, str], ...] = ()) -> Observed:
    """A replica of several pods whose node 0 has a place."""
    spec = {
        "runtime": {"tensorParallelSize": 4, "nnodes": nnodes},
        "pod": {"topologySpread": [{"topologyKey": key} for key in spread]},
    }
    found = resolved(observed(service(**spec), revisions=(), deployments=(), replicas=(), svc=None))
    assert found.revision is not None
    leader = Replica(name="a", uid="u", ip="10.0.0.1", revision=found.revision.id, node="n", domains=domains)
    return replace(found.observed, revisions=(found.revision,), replicas=(leader,))


@pytest.mark.parametrize(
    ("spread", "want"),
    [
        ((), (ZONE,)),
        (("rack",), ("rack",)),
        (("rack", "block", "rack"), ("rack", "block")),
        (("kubernetes.io/hostname", "rack"), ("rack",)),
        (("kubernetes.io/hostname",), (ZONE,)),
    ],
)
def test_pods_are_to_be_in_one_part_by_the_keys_that_replicas_are_spread_by(
    spread: tuple[str, ...], want: tuple[str, ...]
) -> None:
    ((leader, revision),) = node_set.lacking(seen(*spread))
    assert (leader.name, node_set.domain_keys(revision)) == ("a", want)


def test_a_replica_of_one_pod_lacks_nothing() -> None:
    assert node_set.lacking(seen(nnodes=1)) == []


def test_pods_prefer_the_parts_that_their_node_0_is_in() -> None:
    """Preferred, not required: a replica that finds no place there still begins."""
    (made,) = node_set.node_sets(seen("rack", domains=(("rack", "7"), (ZONE, "a"))))
    spec = made["spec"]["template"]["spec"]
    terms = spec["affinity"]["nodeAffinity"][PREFERRED]
    assert [one["preference"]["matchExpressions"] for one in terms] == [
        [{"key": "rack", "operator": "In", "values": ["7"]}],
        [{"key": ZONE, "operator": "In", "values": ["a"]}],
    ]
    assert "topologySpreadConstraints" not in spec
    (far,) = node_set.node_sets(seen("rack"))
    assert "affinity" not in far["spec"]["template"]["spec"]


def test_what_a_template_prefers_itself_stays() -> None:
    asked = seen(domains=((ZONE, "a"),))
    (revision,) = asked.revisions
    other = {"weight": 1, "preference": {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}}
    required = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "DoesNotExist"}]}]}
    given = {"requiredDuringSchedulingIgnoredDuringExecution": required, PREFERRED: [other]}
    spec = {**revision.template["spec"], "affinity": {"podAffinity": {}, "nodeAffinity": given}}
    changed = replace(revision, template={**revision.template, "spec": spec})
    (made,) = node_set.node_sets(replace(asked, revisions=(changed,)))
    affinity = made["spec"]["template"]["spec"]["affinity"]
    assert affinity["podAffinity"] == {}
    assert affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] == required
    assert [one["weight"] for one in affinity["nodeAffinity"][PREFERRED]] == [1, 100]
    assert spec["affinity"]["nodeAffinity"][PREFERRED] == [other]
