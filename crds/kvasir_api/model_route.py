"""ModelRoute `serving.kvasir.dev/v1alpha1`: which services answer the requests for one model name, as pydantic models.

Of a namespace, for services of that namespace. The gateway routes by it and writes nothing; the operator writes its status.
The CRD is generated from these models.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Protocol, get_args

from pydantic import Field, StringConstraints

from kvasir_api.crd_types import CrdObject, ServedName, validation_rules
from kvasir_api.option_fields import option
from kvasir_api.status import MOST, Condition

Unavailability = Literal["Stalled", "AtZero", "Saturated"]
UNAVAILABILITIES: Final[tuple[Unavailability, ...]] = get_args(Unavailability)
MOST_TOKENS: Final = 100_000_000
MOST_PRIORITY: Final = 1_000_000
ServiceName = Annotated[str, StringConstraints(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=52)]
HeaderName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9_]*[a-z0-9])?$", max_length=128)]
HeaderValue = Annotated[str, StringConstraints(max_length=1024)]


class RouteTarget(CrdObject):
    """A service with its share of requests."""

    service: ServiceName = option(..., "InferenceService of the same namespace, or one of the route's backends.")
    weight: int = option(1, "Share of the rule's requests, in proportion to its other targets.", ge=0, le=1_000_000)


class RouteMatch(CrdObject):
    """All of these must be true of a request; absent fields are."""

    min_prompt_tokens: int | None = option(
        None,
        "Prompts of so many tokens or more, estimated by four bytes for each.",
        unit="tokens",
        ge=0,
        le=MOST_TOKENS,
    )
    max_prompt_tokens: int | None = option(
        None, "Prompts of so many tokens or fewer, estimated likewise.", unit="tokens", ge=0, le=MOST_TOKENS
    )
    min_priority: int | None = option(
        None,
        "Requests whose x-kvasir-priority, or else the body's priority, or else 0, is this number or larger, which is less urgent.",
        ge=-MOST_PRIORITY,
        le=MOST_PRIORITY,
    )
    headers: dict[HeaderName, HeaderValue] = option(
        {}, "Headers of the request, in lower case, with exactly these values.", max_length=8
    )


class RouteRule(CrdObject):
    """Which requests, and the services that answer them."""

    model_config = validation_rules(
        ("self.targets.exists(t, t.weight > 0)", "one target needs a weight above 0", ".targets"),
        (
            "!has(self.match) || !has(self.match.minPromptTokens) || !has(self.match.maxPromptTokens) || self.match.minPromptTokens <= self.match.maxPromptTokens",
            "match.minPromptTokens is larger than match.maxPromptTokens: no prompt matches",
            ".match",
        ),
    )

    match: RouteMatch = option(RouteMatch(), "Which requests; without it all.")
    targets: list[RouteTarget] = option(
        ...,
        "The services that answer. Requests of one session (x-session-id) go to the same one.",
        min_length=1,
        max_length=16,
        list_key="service",
    )


class RouteFallback(CrdObject):
    """A service that answers where another one cannot."""

    service: ServiceName = option(..., "InferenceService of the same namespace, or one of the route's backends.")
    when: Annotated[list[Unavailability], Field(min_length=1, max_length=3)] = option(
        list(UNAVAILABILITIES),
        "What the target must be: Stalled, it has no replica that answers, and none will start; AtZero, it has none that is ready, and one may start; Saturated, a request would wait for longer than saturatedSeconds at each replica.",
        list_type="set",
    )


class RouteBackend(CrdObject):
    """An address outside of the cluster that answers by OpenAI's API."""

    name: ServiceName = option(
        ...,
        "As the administrator of the gateways named it. Targets and fallbacks of this name mean the backend, also where a service has it.",
    )
    model: str = option(..., "Name of the model there.", min_length=1, max_length=256, pattern=r"^[!-~]+$")


class ModelRouteSpec(CrdObject):
    """What the user specifies."""

    model_name: ServedName | None = option(
        None,
        "Name that clients request; default: the route's own. NAMESPACE/NAME has the route, unless an older service of another namespace has it; the short name where a service of this namespace has it (servedName, aliases, or its own name).",
    )
    rules: list[RouteRule] = option(
        ..., "The first rule that matches a request counts; none: the request is refused.", min_length=1, max_length=16
    )
    fallbacks: list[RouteFallback] = option(
        [],
        "Services that answer where the target cannot, in this order; the first that can. Where none can, the request waits for the target.",
        max_length=8,
        list_key="service",
    )
    backends: list[RouteBackend] = option(
        [],
        "External backends that targets and fallbacks may name. The gateways' administrator permits each to namespaces, and has its key.",
        max_length=8,
        list_key="name",
    )
    saturated_seconds: int = option(
        10,
        "Predicted wait for its turn at every replica of the target from which on it is Saturated.",
        unit="seconds",
        ge=1,
        le=3600,
    )
    timeout_seconds: int | None = option(
        None,
        "How long a whole answer may take, waiting for a replica included; default: the gateway's.",
        unit="seconds",
        ge=1,
        le=86_400,
    )
    resume_streams: bool = option(
        False,
        "Streams go on at another replica where their own fails or leaves, as with the header x-kvasir-resume: 1; a client excludes one with 0.",
    )


class ModelRouteStatus(CrdObject):
    """What the operator observed."""

    observed_generation: int = option(0, "Generation of the spec that the status is about.", ge=0, le=MOST)
    conditions: list[Condition] = option(
        [],
        "Accepted: the gateway routes by it. ResolvedRefs: every service that it names exists.",
        list_key="type",
        max_length=8,
    )


def precedence(route: Mapping[str, Any]) -> tuple[str, str, str]:
    """Of several routes of a namespace with one name the least counts: the oldest. route: as the API server has it."""
    metadata = route.get("metadata") or {}
    created, namespace, name = (metadata.get(field) for field in ("creationTimestamp", "namespace", "name"))
    return str(created or ""), str(namespace or ""), str(name or "")


class NameOwner(Protocol):
    """The service that has a model name. created: RFC 3339 in UTC."""

    @property
    def namespace(self) -> str: ...

    @property
    def created(self) -> str: ...


def is_taken(owner: NameOwner | None, *, namespace: str, created: str) -> bool:
    """Whether the name NAMESPACE/NAME of a route is a service's of another namespace, which is no younger: of the two,
    none gets the other's requests by coming later. owner: the service that has this name. created: of the route."""
    return owner is not None and owner.namespace != namespace and owner.created <= created


class ModelRoute(CrdObject):
    """Which services answer the requests for one model name: shares, rules, fallbacks and timeout."""

    spec: ModelRouteSpec = option(..., "What the user specifies.")
    status: ModelRouteStatus = option(ModelRouteStatus(), "What the operator observed.")
