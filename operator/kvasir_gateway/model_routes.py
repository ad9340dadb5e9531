"""Which service answers a request for a model name that a ModelRoute has: rules, shares, and fallbacks in their order.

Pure: the picker passes what it reads of a request, and a function that tries a service. Weights are of requests, not of
replicas; the same session always gets the same share.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Generic, TypeVar

from pydantic import ValidationError

from kvasir_api import served_names
from kvasir_api.model_route import (
    ModelRouteSpec,
    NameOwner,
    RouteMatch,
    RouteRule,
    RouteTarget,
    Unavailability,
    is_taken,
    precedence,
)
from kvasir_kube.kinds import Json

Found = TypeVar("Found")
SHARE_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteInputs:
    """What rules read of a request. prompt_tokens: estimated. priority: lower is more urgent. headers: names in lower
    case. sticky: requests with the same text get the same share: a session, or the request alone."""

    prompt_tokens: float = 0.0
    priority: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    sticky: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRoute:
    """One ModelRoute object. created: RFC 3339 in UTC."""

    namespace: str
    name: str
    created: str
    spec: ModelRouteSpec

    @property
    def model(self) -> str:
        """The short name that clients request."""
        return self.spec.model_name or self.name

    @property
    def services(self) -> tuple[str, ...]:
        """Keys of all services that it names."""
        named = [target.service for rule in self.spec.rules for target in rule.targets]
        return tuple(dict.fromkeys(map(self.key_of, [*named, *(other.service for other in self.spec.fallbacks)])))

    def key_of(self, service: str) -> str:
        """The key of one of its services, as RoutedService has it; a backend is the route's own."""
        own = any(backend.name == service for backend in self.spec.backends)
        return f"{self.namespace}.{self.name}/{service}" if own else f"{self.namespace}.{service}"

    def rule(self, request: RouteInputs) -> RouteRule | None:
        """The first that matches a request."""
        return next((rule for rule in self.spec.rules if _matches(rule.match, request)), None)

    def target(self, request: RouteInputs, usable: Container[str] | None = None) -> str | None:
        """Key of the service for a request; None where no rule matches, or its targets may not be used. usable: keys of
        the services that may, None for all."""
        rule = self.rule(request)
        among = [
            target
            for target in (rule.targets if rule is not None else ())
            if target.weight and (usable is None or self.key_of(target.service) in usable)
        ]
        return self.key_of(_by_share(among, f"{self.key_of(self.name)}\0{request.sticky}")) if among else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceChoice(Generic[Found]):
    """service: its key. found: what trying it gave, None where it cannot answer now. fallback: why it is not the
    target, None where it is."""

    service: str
    found: Found | None
    fallback: Unavailability | None = None


def parsed(objects: Iterable[Json]) -> list[ModelRoute]:
    """The routes of objects, oldest first, without those that this version cannot read."""
    found = []
    for obj in sorted(objects, key=precedence):
        created, namespace, name = precedence(obj)
        try:
            spec = ModelRouteSpec.model_validate(obj.get("spec") or {})
        except ValidationError:
            continue
        found.append(ModelRoute(namespace=namespace, name=name, created=created, spec=spec))
    return found


def by_name(routes: Iterable[ModelRoute], owners: Mapping[str, NameOwner]) -> dict[str, ModelRoute]:
    """The route of each model name, the oldest where several of a namespace have one.

    owners: the service that has a name. A route has no name that a service of another namespace had before it, and a
    short one only where a service of its own has it, so that it cannot take the requests of another namespace.
    """
    oldest: dict[str, ModelRoute] = {}
    for route in routes:
        oldest.setdefault(served_names.qualified_name(route.namespace, route.model), route)
    short = {route.model: route for route in oldest.values() if _is_of(owners.get(route.model), route)}
    return short | {
        name: route
        for name, route in oldest.items()
        if not is_taken(owners.get(name), namespace=route.namespace, created=route.created)
    }


def choose_service(
    route: ModelRoute, target: str, attempt: Callable[[str], tuple[Found | None, Unavailability | None]]
) -> ServiceChoice[Found]:
    """The target, or the first fallback that can answer where the target cannot for one of its reasons.

    attempt: what a service (its key) would do with the request, and why it should not have it, None where it can. What
    has both (it is saturated, or rests) gets the request where nothing else can answer: the target before fallbacks.
    """
    found, why = attempt(target)
    last: ServiceChoice[Found] | None = None
    for other in route.spec.fallbacks if why is not None else ():
        if why in other.when and (service := route.key_of(other.service)) != target:
            found_there, why_not = attempt(service)
            if found_there is None:
                continue
            choice = ServiceChoice(service=service, found=found_there, fallback=why)
            if why_not is None:
                return choice
            last = last or choice
    return last if last is not None and found is None else ServiceChoice(service=target, found=found)


def _is_of(owner: NameOwner | None, route: ModelRoute) -> bool:
    return owner is not None and owner.namespace == route.namespace


def _matches(match: RouteMatch, request: RouteInputs) -> bool:
    return (
        (match.min_prompt_tokens is None or request.prompt_tokens >= match.min_prompt_tokens)
        and (match.max_prompt_tokens is None or request.prompt_tokens <= match.max_prompt_tokens)
        and (match.min_priority is None or request.priority >= match.min_priority)
        and all(request.headers.get(name) == value for name, value in match.headers.items())
    )


def _by_share(weighted: Sequence[RouteTarget], sticky: str) -> str:
    """By the hash's place among the weights, one behind the other. weighted: with a weight above 0."""
    digest = blake2b(sticky.encode("utf-8", "surrogatepass"), digest_size=SHARE_BYTES).digest()
    place = int.from_bytes(digest) * sum(target.weight for target in weighted) >> 8 * SHARE_BYTES
    for target in weighted:
        if place < target.weight:
            return target.service
        place -= target.weight
    raise ValueError("no target has a weight")
