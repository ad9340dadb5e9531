"""What a ModelRoute's status says: of its name, and of the services that it names."""

import pytest

from fakes.gateway import model_route, service
from kvasir_api import served_names
from kvasir_operator.status.route_conditions import oldest_routes, route_conditions

RULES = [{"targets": [{"service": "a"}, {"service": "b", "weight": 0}]}]
ROUTE = model_route("r", modelName="chat", rules=RULES, fallbacks=[{"service": "c"}])
OLDER = model_route("older", modelName="chat", created="2025-01-01T00:00:00Z", rules=RULES)
ELSEWHERE = model_route("older", namespace="other", modelName="chat", created="2025-01-01T00:00:00Z", rules=RULES)
ALL = {("default", name) for name in "abc"}


def found(route=ROUTE, routes=(), services=ALL, owner="default", others=()):
    own = [service("a", model="chat", namespace=owner)] if owner else []
    owners = served_names.owners(claim for one in [*own, *others] for claim in served_names.name_claims(one))
    said = route_conditions(route, oldest=oldest_routes([route, *routes]), services=services, owners=owners)
    return {one.type: (one.status, one.reason, one.message) for one in said}


@pytest.mark.parametrize(
    ("owner", "message"),
    [
        ("default", "requests for 'chat' and 'default/chat' go by it"),
        ("other", "a service of another namespace has the name 'chat'"),
        ("", "no service has the name 'chat'"),
    ],
)
def test_the_names_that_go_by_a_route_are_told(owner, message):
    accepted, reason, said = found(owner=owner)["Accepted"]
    assert (accepted, reason) == (True, "Accepted")
    assert message in said
    assert "'default/chat' go" in said


@pytest.mark.parametrize(
    ("owner", "created", "services", "wanted"),
    [
        ("default", "2026-01-01T00:00:00Z", ALL, (True, "Accepted", "requests for 'chat' go by it; an older service")),
        (
            "other",
            "2026-01-01T00:00:00Z",
            ALL,
            (False, "NameConflict", "and an older service of another namespace has the name 'default/chat'"),
        ),
        ("default", "2026-02-01T00:00:00Z", ALL, (True, "Accepted", "'chat' and 'default/chat' go by it")),
        (
            "default",
            "2026-01-01T00:00:00Z",
            {*ALL, ("default", "chat")},
            (True, "Accepted", "'chat' and 'default/chat'"),
        ),
    ],
)
def test_a_name_of_an_older_service_of_another_namespace_is_told(owner, created, services, wanted):
    older = service("x", model="default/chat", namespace="models", created=created)
    accepted, reason, said = found(owner=owner, services=services, others=[older])["Accepted"]
    assert (accepted, reason) == wanted[:2]
    assert wanted[2] in said
    assert "models" not in said, "what another namespace has is not told"


@pytest.mark.parametrize(("rival", "reason"), [(OLDER, "NameConflict"), (ELSEWHERE, "Accepted")])
def test_of_two_routes_of_a_namespace_the_older_one_is_accepted(rival, reason):
    assert found(routes=[rival])["Accepted"][1] == reason
    assert found(route=rival, routes=[ROUTE])["Accepted"][1] == "Accepted"


def test_missing_services_are_named_by_their_fields():
    assert found()["ResolvedRefs"] == (True, "ResolvedRefs", "every service that it names exists")
    resolved, reason, said = found(services={("default", "a"), ("other", "b"), ("other", "c")})["ResolvedRefs"]
    assert (resolved, reason) == (False, "ServiceNotFound")
    assert said.endswith("spec.rules[0].targets[1].service: b, spec.fallbacks[0].service: c")


def test_a_backend_of_the_route_is_no_missing_service():
    backed = model_route("r", rules=RULES, backends=[{"name": "b", "model": "m"}])
    assert found(route=backed, services={("default", "a")})["ResolvedRefs"][0]


def test_a_spec_that_cannot_be_read_is_refused_by_its_field():
    conditions = found(route=model_route("r", rules=[{"targets": []}]))
    assert list(conditions) == ["Accepted"]
    accepted, reason, said = conditions["Accepted"]
    assert (accepted, reason) == (False, "Invalid")
    assert said.startswith("spec.rules.0.targets: ")
