"""Which service a ModelRoute names for a request: rules in their order, shares, fallbacks for their reasons."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.gateway import model_route
from kvasir_api.served_names import NameClaim
from kvasir_gateway import model_routes
from kvasir_gateway.model_routes import RouteInputs, ServiceChoice


def route(*rules, **spec):
    (made,) = model_routes.parsed([model_route("r", rules=list(rules), **spec)])
    return made


def to(*services, **match):
    targets = [{"service": s} if isinstance(s, str) else {"service": s[0], "weight": s[1]} for s in services]
    return {"targets": targets} | ({"match": match} if match else {})


RULES = route(
    to("long", minPromptTokens=1000),
    to("cheap", minPriority=1),
    to("beta", headers={"x-team": "beta"}),
    to("short", maxPromptTokens=500),
)


@pytest.mark.parametrize(
    ("request_", "service"),
    [
        (RouteInputs(prompt_tokens=1000), "long"),
        (RouteInputs(prompt_tokens=999, priority=1), "cheap"),
        (RouteInputs(prompt_tokens=2000, priority=5), "long"),
        (RouteInputs(prompt_tokens=600, headers={"x-team": "beta"}), "beta"),
        (RouteInputs(prompt_tokens=500, headers={"x-team": "alpha"}), "short"),
        (RouteInputs(prompt_tokens=501, priority=-3), None),
    ],
)
def test_the_first_rule_that_matches_counts(request_, service):
    assert RULES.target(request_) == (None if service is None else f"default.{service}")


def test_shares_are_as_the_weights():
    weighted = route(to(("a", 90), ("b", 10), ("never", 0)))
    found = Counter(weighted.target(RouteInputs(sticky=f"request {number}")) for number in range(10_000))
    assert found.keys() == {"default.a", "default.b"}
    assert 850 < found["default.b"] < 1150


@given(st.text(), st.lists(st.integers(0, 1_000_000), min_size=1, max_size=4).filter(any))
def test_the_same_session_gets_the_same_target_and_never_one_without_weight(session, weights):
    weighted = route(to(*((f"s{number}", weight) for number, weight in enumerate(weights))))
    found = {weighted.target(RouteInputs(sticky=session)) for _ in range(3)}
    (one,) = found
    assert weights[int(one.removeprefix("default.s"))] > 0


def test_shares_are_of_what_may_be_used():
    weighted = route(to(("a", 90), ("b", 10), ("c", 0)))
    inputs = [RouteInputs(sticky=str(number)) for number in range(200)]
    assert {weighted.target(one, {"default.b", "default.c"}) for one in inputs} == {"default.b"}
    assert {weighted.target(one, {"default.c"}) for one in inputs} == {None}


def test_two_routes_do_not_divide_their_requests_alike():
    """Or a canary within a canary would get all or nothing."""
    specs = [model_route(name, rules=[to("a", "b")]) for name in ("one", "two")]
    one, two = model_routes.parsed(specs)
    both = {(one.target(inputs), two.target(inputs)) for inputs in (RouteInputs(sticky=str(n)) for n in range(100))}
    assert len(both) == 4


WITH_FALLBACKS = route(
    to("main"),
    fallbacks=[
        {"service": "cold", "when": ["AtZero"]},
        {"service": "busy", "when": ["Saturated", "Stalled"]},
        {"service": "last"},
    ],
)


@pytest.mark.parametrize(
    ("states", "want"),
    [
        ({}, ("main", None)),
        ({"main": "AtZero"}, ("cold", "AtZero")),
        ({"main": "AtZero", "cold": "Stalled"}, ("last", "AtZero")),
        ({"main": "Saturated"}, ("busy", "Saturated")),
        ({"main": "Stalled", "busy": "Saturated"}, ("last", "Stalled")),
        ({"main": "Stalled", "busy": "Saturated", "last": "Saturated"}, ("busy", "Stalled")),
        ({"main": "Stalled", "busy": "Stalled", "last": "Saturated"}, ("last", "Stalled")),
        ({"main": "Saturated", "busy": "Saturated", "last": "Saturated"}, ("main", None)),
        ({"main": "AtZero", "cold": "AtZero", "last": "AtZero"}, ("main", None)),
    ],
)
def test_the_first_fallback_that_can_answer_does_for_its_reasons(states, want):
    def attempt(key):
        why = states.get(key.removeprefix("default."))
        return (None if why in {"AtZero", "Stalled"} else f"endpoints of {key}"), why

    service, fallback = want
    target_is_gone = service == "main" and states.get("main") == "AtZero"
    found = None if target_is_gone else f"endpoints of default.{service}"
    chosen = model_routes.choose_service(WITH_FALLBACKS, "default.main", attempt)
    assert chosen == ServiceChoice(service=f"default.{service}", found=found, fallback=fallback)


def test_a_fallback_that_is_the_target_itself_is_not_tried_twice():
    tried = []

    def attempt(key):
        tried.append(key)
        return None, "Stalled"

    assert model_routes.choose_service(WITH_FALLBACKS, "default.last", attempt).found is None
    assert tried == ["default.last", "default.busy"]


def owners(created="2026-01-01T00:00:00Z", **namespaces):
    """By model name; a dot stands for the slash."""
    return {
        name.replace(".", "/"): NameClaim(served_name=name, namespace=namespace, name="s", created=created)
        for name, namespace in namespaces.items()
    }


@pytest.mark.parametrize(
    ("owner", "names"),
    [("default", {"default/chat", "chat"}), ("other", {"default/chat"}), (None, {"default/chat"})],
)
def test_a_short_name_is_a_routes_only_where_its_namespace_has_it(owner, names):
    routes = model_routes.parsed([model_route("chat", rules=[to("a")])])
    assert model_routes.by_name(routes, owners(chat=owner) if owner else {}).keys() == names


def test_of_two_routes_of_a_name_the_older_one_counts():
    specs = [
        model_route("newer", created="2026-01-02T00:00:00Z", modelName="chat", rules=[to("b")]),
        model_route("older", modelName="chat", rules=[to("a")]),
        model_route("elsewhere", namespace="other", modelName="chat", rules=[to("c")]),
    ]
    found = model_routes.by_name(model_routes.parsed(specs), owners(chat="default"))
    assert {name: route.name for name, route in found.items()} == {
        "default/chat": "older",
        "chat": "older",
        "other/chat": "elsewhere",
    }


@pytest.mark.parametrize(
    ("namespace", "created", "names"),
    [
        ("models", "2025-01-01T00:00:00Z", set()),
        ("models", "2026-01-01T00:00:00Z", set()),
        ("models", "2026-02-01T00:00:00Z", {"default/Chat-8B"}),
        ("default", "2025-01-01T00:00:00Z", {"default/Chat-8B"}),
    ],
)
def test_neither_a_route_nor_a_service_takes_the_others_name_by_coming_later(namespace, created, names):
    """Else its clients' keys and prompts came to another namespace."""
    routes = model_routes.parsed([model_route("r", modelName="Chat-8B", rules=[to("a")])])
    owned = owners(created, **{"default.Chat-8B": namespace})
    assert model_routes.by_name(routes, owned).keys() == names


def test_a_route_without_its_long_name_keeps_the_short_one():
    routes = model_routes.parsed([model_route("r", modelName="Chat-8B", rules=[to("a")])])
    owned = owners(**{"default.Chat-8B": "models", "Chat-8B": "default"})
    assert model_routes.by_name(routes, owned).keys() == {"Chat-8B"}


def test_what_cannot_be_read_is_left_out():
    assert model_routes.parsed([model_route("r", rules="none"), {"metadata": {"name": "x"}}]) == []


def test_a_backend_has_a_key_of_its_route():
    backed = route(to("a", "b"), fallbacks=[{"service": "c"}], backends=[{"name": "b", "model": "m"}])
    assert backed.services == ("default.a", "default.r/b", "default.c")
    assert backed.target(RouteInputs(), {"default.r/b"}) == "default.r/b"


def test_all_services_of_a_route_are_known():
    assert WITH_FALLBACKS.services == ("default.main", "default.cold", "default.busy", "default.last")
