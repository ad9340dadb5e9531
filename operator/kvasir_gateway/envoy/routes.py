"""The routes of Envoy's listeners: to the cluster that the picker names, or to the relay.

Pure data. They never change, but where requests are served without a picker: then each model has a route as well, which
applies to requests for which no cluster is named. The picker writes those into the file that Envoy watches.
"""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

from kvasir_api import http_apis, names
from kvasir_gateway.hold_queue import MAX_ANSWER_S

Config = dict[str, Any]
CONFIGURATION: Final = "all"
RELAY: Final = "relay"
BACKENDS: Final = "backends"
"""Clusters of the relay's process: its own, and that of external backends."""
MODEL: Final = "model"
"""In the metadata of a request, under METADATA: the model that its body names."""
METADATA: Final = "kvasir"
OF_A_MODEL: Final = "model "
"""Names of the routes for requests that no picker has seen begin so."""
FROM_REQUEST: Final = (names.HEADER_SERVICE, names.HEADER_FALLBACK, *names.HEADERS_RATE_LIMIT)
"""Headers of an answer that the picker sets in the request, of which it has the head."""
SECRETS: Final = ("api-key", "authorization", "cookie", "proxy-authorization", "x-api-key")
"""Headers of a client that the server for external backends does not get: it has no use for them."""
MOST_REFERRALS: Final = 3
"""How often a request comes back from replicas that have no room for it; then their refusal is the answer."""
REFERRALS: Final[Config] = {
    "max_internal_redirects": MOST_REFERRALS,
    "redirect_response_codes": [307],
    "allow_cross_scheme_redirect": True,  # a stream of the relay may have come by TLS, and is on a plain socket now
}
RELAY_RETRIES: Final[Config] = {
    "retry_on": "connect-failure",
    "num_retries": 5,
    "retry_back_off": {"base_interval": "0.1s", "max_interval": "1s"},
}
"""For the second or two in which the relay's process starts again: it has got nothing of such a request."""
CORS_FILTER: Final = "envoy.filters.http.cors"
CORS_MAX_AGE_S: Final = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSettings:
    """idle_timeout_s: silence after which a stream of events ends. cors_origins: from whose pages browsers may send
    requests, `*` for any; empty for none."""

    max_body_bytes: int
    idle_timeout_s: int
    cors_origins: tuple[str, ...] = ()


def route_configuration(settings: RouteSettings) -> Config:
    """The routes, without those of models.

    A request that waits for a replica, or whose answer comes in one piece, is silent: the picker's timeout ends it. One
    for an external backend is sent once, since the relay tries the next one.
    """
    relayed = {"name": names.HEADER_CLUSTER, "string_match": {"exact": RELAY}}
    external = {"name": names.HEADER_CLUSTER, "string_match": {"exact": BACKENDS}}
    streams = {"name": names.HEADER_STREAM, "present_match": True}
    refers = {"name": names.HEADER_REFER, "present_match": True}
    host: Config = {
        "name": "all",
        "domains": ["*"],
        "request_body_buffer_limit": settings.max_body_bytes,
        "include_request_attempt_count": True,
        "routes": [
            {
                "match": {"prefix": "/", "headers": [relayed]},
                "route": {
                    "cluster": RELAY,
                    "timeout": "0s",
                    "idle_timeout": f"{MAX_ANSWER_S}s",
                    "retry_policy": RELAY_RETRIES,
                },
            },
            {
                "match": {"prefix": "/", "headers": [external]},
                "route": {
                    "cluster": BACKENDS,
                    "timeout": f"{MAX_ANSWER_S}s",
                    "idle_timeout": f"{MAX_ANSWER_S}s",
                },
                "request_headers_to_remove": list(SECRETS),
            },
            {
                "match": {"prefix": "/", "headers": [streams, refers]},
                **_to_named_cluster(settings.idle_timeout_s, follows=True),
            },
            {"match": {"prefix": "/", "headers": [streams]}, **_to_named_cluster(settings.idle_timeout_s)},
            {"match": {"prefix": "/", "headers": [refers]}, **_to_named_cluster(MAX_ANSWER_S, follows=True)},
            {"match": {"prefix": "/"}, **_to_named_cluster(MAX_ANSWER_S)},
        ],
        "response_headers_to_add": [_from_request(name) for name in FROM_REQUEST],
    }
    if settings.cors_origins:
        host["typed_per_filter_config"] = {CORS_FILTER: _cors(settings.cors_origins)}
    return {"name": CONFIGURATION, "virtual_hosts": [host]}


def with_models(configuration: Config, clusters: Mapping[str, str]) -> Config:
    """The routes with one for each model. clusters: by the name of the model."""
    made = deepcopy(configuration)
    (host,) = made["virtual_hosts"]
    *others, last = (route for route in host["routes"] if not route.get("name", "").startswith(OF_A_MODEL))
    host["routes"] = [*others, *_of_models(clusters, timeout=last["route"]["idle_timeout"]), last]
    return made


def _of_models(clusters: Mapping[str, str], *, timeout: str) -> Iterable[Config]:
    no_picker = {"name": names.HEADER_CLUSTER, "present_match": True, "invert_match": True}
    post = {"name": ":method", "string_match": {"exact": "POST"}}
    for model, cluster in sorted(clusters.items()):
        for prefix, called in (("/v1/", (model,)), (f"{http_apis.OLLAMA}/", (model, model + http_apis.LATEST))):
            exact = [{"string_match": {"exact": name}} for name in called]
            value = {"or_match": {"value_matchers": exact}} if len(exact) > 1 else exact[0]
            named = {"filter": METADATA, "path": [{"key": MODEL}], "value": value}
            yield {
                "name": f"{OF_A_MODEL}{model}",
                "match": {"prefix": prefix, "headers": [no_picker, post], "dynamic_metadata": [named]},
                "route": {"cluster": cluster, "timeout": timeout, "idle_timeout": timeout, "retry_policy": _retries()},
            }


def _from_request(name: str) -> Config:
    """A header of the answer; none where the request has none."""
    header = {"key": name, "value": f"%REQ({name})%"}
    return {"header": header, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD", "keep_empty_value": False}


def _to_named_cluster(idle_timeout_s: int, *, follows: bool = False) -> Config:
    """By the picker's headers, which also have the timeout of the whole answer. follows: a replica without room sends
    the request back, with its body, and the picker decides again."""
    return {
        "route": {
            "cluster_header": names.HEADER_CLUSTER,
            "timeout": f"{MAX_ANSWER_S}s",
            "idle_timeout": f"{idle_timeout_s}s",
            "retry_policy": _retries(),
            **({"internal_redirect_policy": REFERRALS} if follows else {}),
        },
    }


def _retries() -> Config:
    """Only before the first byte of an answer, on another endpoint of the picker's list: `reset` also covers a kept
    connection that the pod closed just now, 503 is what a pod answers that has begun to leave or is not ready yet.
    Twice at most, since a request may be what kills a pod. The picker adds 429 where another endpoint has room
    (names.HEADER_RETRIED_STATUSES).
    """
    return {
        "retry_on": "connect-failure,refused-stream,reset,retriable-status-codes",
        "retriable_status_codes": [503],
        "num_retries": 2,
        "retry_host_predicate": [
            {
                "name": "envoy.retry_host_predicates.previous_hosts",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate",
                },
            }
        ],
        "host_selection_retry_max_attempts": 3,
        "retry_back_off": {"base_interval": "0.025s", "max_interval": "0.25s"},
    }


def _cors(origins: Iterable[str]) -> Config:
    """`*` does not stand for Authorization in a list of headers, so that it is named."""
    return {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.cors.v3.CorsPolicy",
        "allow_origin_string_match": [{"exact": origin} for origin in origins],
        "allow_methods": "GET, POST, DELETE",
        "allow_headers": "authorization, *",
        "expose_headers": "*",
        "max_age": str(CORS_MAX_AGE_S),
    }
