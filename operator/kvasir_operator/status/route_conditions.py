"""Conditions of a ModelRoute: whether the gateway routes by it, and whether the services that it names exist.

Pure. The rules are the gateway's; their words are the Gateway API's (Accepted, ResolvedRefs).
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from pydantic import ValidationError

from kvasir_api.model_route import ModelRouteSpec, is_taken, precedence
from kvasir_api.served_names import NameClaim, qualified_name
from kvasir_kube.kinds import Json, Key, key
from kvasir_operator.status.listing import listed

ACCEPTED: Final = "Accepted"
RESOLVED: Final = "ResolvedRefs"


class RouteFinding(NamedTuple):
    """One condition without its times."""

    type: str
    status: bool
    reason: str
    message: str


def oldest_routes(routes: Iterable[Json]) -> dict[tuple[str, str], Json]:
    """The oldest route of each namespace and model name. routes: of all namespaces."""
    found: dict[tuple[str, str], Json] = {}
    for route in routes:
        name = key(route)[0], _model(route)
        if name not in found or precedence(route) < precedence(found[name]):
            found[name] = route
    return found


def route_conditions(
    route: Json, *, oldest: Mapping[tuple[str, str], Json], services: Collection[Key], owners: Mapping[str, NameClaim]
) -> tuple[RouteFinding, ...]:
    """What holds of a route now. oldest: `oldest_routes` of all, this one too. owners: of names that services claim."""
    namespace, name = key(route)
    try:
        spec = ModelRouteSpec.model_validate(route.get("spec") or {})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(["spec", *map(str, first["loc"])])
        return (RouteFinding(ACCEPTED, False, "Invalid", f"{where}: {first['msg']}"),)
    model = spec.model_name or name
    own = (namespace, model) in services
    return _accepted(route, model, oldest, owners, own=own), _resolved(namespace, spec, services)


def _accepted(
    route: Json, model: str, oldest: Mapping[tuple[str, str], Json], owners: Mapping[str, NameClaim], *, own: bool
) -> RouteFinding:
    """own: a service of the namespace is called as the model is, so that no other one has NAMESPACE/NAME."""
    namespace, _ = key(route)
    winner = oldest[namespace, model]
    if precedence(winner) < precedence(route):
        older = qualified_name(*key(winner))
        why = f"spec.modelName: ModelRoute {older}, which is older, has the name {model!r}"
        return RouteFinding(ACCEPTED, False, "NameConflict", why)
    qualified, owner = qualified_name(namespace, model), owners.get(model)
    created, _, _ = precedence(route)
    lacks: dict[str, str] = {}
    if owner is None or owner.namespace != namespace:
        lacks[model] = "no service has" if owner is None else "a service of another namespace has"
    if not own and is_taken(owners.get(qualified), namespace=namespace, created=created):
        lacks[qualified] = "an older service of another namespace has"
    why = " and ".join(f"{who} the name {name!r}" for name, who in lacks.items())
    goes = " and ".join(repr(name) for name in (model, qualified) if name not in lacks)
    if not goes:
        return RouteFinding(ACCEPTED, False, "NameConflict", f"spec.modelName: {why}")
    message = f"requests for {goes} go by it" + (f"; {why}, so those for that do not" if why else "")
    return RouteFinding(ACCEPTED, True, ACCEPTED, message)


def _resolved(namespace: str, spec: ModelRouteSpec, services: Collection[Key]) -> RouteFinding:
    named = [
        *(
            (f"spec.rules[{i}].targets[{j}].service", target.service)
            for i, rule in enumerate(spec.rules)
            for j, target in enumerate(rule.targets)
        ),
        *((f"spec.fallbacks[{i}].service", other.service) for i, other in enumerate(spec.fallbacks)),
    ]
    backends = {backend.name for backend in spec.backends}
    missing = [
        f"{path}: {service}"
        for path, service in named
        if service not in backends and (namespace, service) not in services
    ]
    if not missing:
        return RouteFinding(RESOLVED, True, RESOLVED, "every service that it names exists")
    message = f"no InferenceService of namespace {namespace}, and no backend of the route, is called so"
    return RouteFinding(RESOLVED, False, "ServiceNotFound", f"{message}: {listed(missing)}")


def _model(route: Json) -> str:
    return str((route.get("spec") or {}).get("modelName") or key(route)[1])
