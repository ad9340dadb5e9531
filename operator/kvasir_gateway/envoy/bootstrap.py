"""Envoy's bootstrap: listeners of clients and of the relay, the picker as external processor and source of clusters.

Pure data. Written once before Envoy starts, by `kvasir gateway bootstrap`; listeners never change, since the picker
names the cluster of each request in a header that no client can set.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from kvasir_api import names
from kvasir_gateway.envoy import edge_tls, local_replies, overload, routes
from kvasir_gateway.envoy.routes import BACKENDS, RELAY, RouteSettings
from kvasir_gateway.hold_queue import MAX_ANSWER_S, MAX_HOLD_S

Config = dict[str, Any]
PICKER, REQUESTS = "picker", "requests"
"""Clusters of the picker's process: for the log and the clusters, and for the decisions."""
BOOTSTRAP = "bootstrap.json"
ROUTES = "routes.json"
PICKER_SOCKET, REQUESTS_SOCKET = "picker.sock", "requests.sock"
ADMIN_SOCKET = "admin.sock"
RELAY_SOCKET = "relay.sock"
BACKENDS_SOCKET = "backends.sock"
INNER_SOCKET = "inner.sock"
RELAY_IDLE_S = 30
FIRST_CLUSTERS_S = 2
"""So long Envoy waits for its first clusters before it listens; without a picker it answers then that there is none."""
RECONNECT_S = 0.05, 0.5
"""First and longest pause before Envoy connects to a picker again for clusters; 0.5 and 30 s by itself."""
MAX_AT_ONCE = 1 << 20
MAX_RETRIES = 1024
"""Limits of a cluster far above need: the pods' queues and the connections limit the load, not Envoy's defaults."""
HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
TYPES = "type.googleapis.com/envoy"
OWN_HEADERS = (
    names.HEADER_DESTINATION,
    names.HEADER_CLUSTER,
    names.HEADER_STREAM,
    names.HEADER_FALLBACK,
    names.HEADER_BACKEND,
    names.HEADER_BACKEND_MODEL,
    names.HEADER_KV_PEER,
    names.HEADER_REFER,
    *names.HEADERS_RATE_LIMIT,
)
"""Set by the picker."""
RELAY_HEADERS = (names.HEADER_RELAYED, names.HEADER_SERVICE, names.HEADER_TRIED, names.HEADER_ANSWER)
"""Set by the relay too."""
MAX_HEAD_BYTES = 60 << 10
"""Of a client's request, and Envoy's own bound for an answer."""
MAX_INNER_HEAD_BYTES = MAX_HEAD_BYTES + (4 << 10)
"""With the headers that Envoy and the relay add."""
LOG_BUFFER_BYTES = 1 << 14
LOG_EVERY = "0.005s"
"""Ends of requests reach the picker so often at least: a message for each took a tenth of what a request takes."""
CONNECTION_BUFFER_BYTES = 1 << 20
"""Bytes of an answer that wait for a slow reader before the pod's stream is paused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapSettings:
    """Settings of the listener.

    directory: shared by Envoy and picker: files and sockets. message_timeout_s: how long the picker may take to choose.
    idle_timeout_s: silence of a stream that is still alive; the first token of a long prompt may take minutes.
    tls_directory: with the certificate, None for plain HTTP. cors_origins: see RouteSettings. serves_without_picker:
    requests that no picker answers go to the model's service by least requests; else they are refused. max_heap_bytes:
    of Envoy, close to which it refuses new requests.
    """

    directory: PurePosixPath
    address: str
    port: int = names.PORT_GATEWAY
    max_body_bytes: int = 8 << 20
    max_connections: int = 20_000
    max_heap_bytes: int = 768 << 20
    idle_timeout_s: int = 300
    request_timeout_s: int = 120
    message_timeout_s: int = 5
    tls_directory: PurePosixPath | None = None
    cors_origins: tuple[str, ...] = ()
    serves_without_picker: bool = False

    @property
    def routes(self) -> Config:
        """The routes, without those of models."""
        return routes.route_configuration(
            RouteSettings(
                max_body_bytes=self.max_body_bytes,
                idle_timeout_s=self.idle_timeout_s,
                cors_origins=self.cors_origins,
            )
        )


def bootstrap(settings: BootstrapSettings) -> Config:
    """The whole document; JSON is YAML to Envoy."""
    directory = settings.directory
    return {
        "node": {"id": names.GATEWAY, "cluster": names.GATEWAY},
        "admin": {"address": {"pipe": {"path": str(directory / ADMIN_SOCKET), "mode": 0o660}}},
        "dynamic_resources": {"cds_config": _clusters()},
        "static_resources": {
            "listeners": [_listener(settings), _inner_listener(settings)],
            "clusters": _own_clusters(directory),
        },
        "stats_config": {"stats_matcher": {"inclusion_list": {"patterns": _stats()}}},
        **overload.limits(max_connections=settings.max_connections, max_heap_bytes=settings.max_heap_bytes),
    }


def _clusters() -> Config:
    """From the picker, each change by itself; what an earlier picker sent stays in use until the next one differs."""
    first, longest = RECONNECT_S
    pauses = {"retry_back_off": {"base_interval": f"{first}s", "max_interval": f"{longest}s"}}
    return {
        "resource_api_version": "V3",
        "initial_fetch_timeout": f"{FIRST_CLUSTERS_S}s",
        "api_config_source": {
            "api_type": "DELTA_GRPC",
            "transport_api_version": "V3",
            "grpc_services": [{"envoy_grpc": {"cluster_name": PICKER, "retry_policy": pauses}}],
        },
    }


def _stats() -> list[Config]:
    """The counts that the picker reads. Others, many for each cluster, would cost memory and time at each change."""
    return [
        {"exact": "http.gateway.downstream_rq_active"},
        {"safe_regex": {"regex": r"cluster\..*\.upstream_rq_(pending_)?active"}},
    ]


def _own_clusters(directory: PurePosixPath) -> list[Config]:
    """Of the picker's process, and of the relay's; each listens at two sockets."""
    grpc = http_options({"http2_protocol_options": {}})
    http1 = http_options({"http_protocol_options": {}}, idle_timeout=f"{RELAY_IDLE_S}s")
    return [
        _socket_cluster(PICKER, directory / PICKER_SOCKET, grpc),
        _socket_cluster(REQUESTS, directory / REQUESTS_SOCKET, grpc),
        _socket_cluster(RELAY, directory / RELAY_SOCKET, http1),
        _socket_cluster(BACKENDS, directory / BACKENDS_SOCKET, http1),
    ]


def _socket_cluster(name: str, path: PurePosixPath, options: Config) -> Config:
    socket = {"endpoint": {"address": {"pipe": {"path": str(path)}}}}
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "typed_extension_protocol_options": options,
        "circuit_breakers": unlimited(),
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [socket]}]},
    }


def http_options(protocol: Config, **common: Any) -> Config:
    """The HTTP options of a cluster."""
    options = {"@type": f"type.googleapis.com/{HTTP_OPTIONS}", "explicit_http_config": protocol}
    return {HTTP_OPTIONS: {**options, **({"common_http_protocol_options": common} if common else {})}}


def unlimited() -> Config:
    """The circuit breakers of a cluster."""
    limits = dict.fromkeys(("max_connections", "max_pending_requests", "max_requests"), MAX_AT_ONCE)
    return {"thresholds": [{**limits, "max_retries": MAX_RETRIES}]}


def _listener(settings: BootstrapSettings) -> Config:
    """Of clients: headers that only the gateway may set are removed."""
    socket: Config = {"address": settings.address, "port_value": settings.port}
    if settings.address == names.ALL_ADDRESSES:
        socket["ipv4_compat"] = True
    address = {"socket_address": socket}
    manager = _connection_manager(settings, "gateway", (*OWN_HEADERS, *RELAY_HEADERS))
    tls = {} if settings.tls_directory is None else {"transport_socket": edge_tls.transport_socket(settings.directory)}
    return _listener_at(names.PORT_HTTP_NAME, address, manager, **tls)


def _inner_listener(settings: BootstrapSettings) -> Config:
    """Of the relay: requests that were taken already, on their way to a replica. Its requests count apart."""
    address = {"pipe": {"path": str(settings.directory / INNER_SOCKET), "mode": 0o660}}
    manager = _connection_manager(settings, RELAY, OWN_HEADERS)
    inner = {"use_remote_address": False, "max_request_headers_kb": MAX_INNER_HEAD_BYTES >> 10}
    return _listener_at(RELAY, address, {**manager, **inner})


def _listener_at(name: str, address: Config, manager: Config, **chain: Config) -> Config:
    return {
        "name": name,
        "address": address,
        "per_connection_buffer_limit_bytes": CONNECTION_BUFFER_BYTES,
        "filter_chains": [
            {
                "filters": [
                    {
                        "name": "envoy.filters.network.http_connection_manager",
                        "typed_config": manager,
                    }
                ],
                **chain,
            }
        ],
    }


def _connection_manager(settings: BootstrapSettings, stat_prefix: str, removed: Iterable[str]) -> Config:
    return {
        "@type": f"{TYPES}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": stat_prefix,
        "codec_type": "AUTO",
        # As old proxies speak it, nginx by default; the end of a connection is the end of a stream there.
        "http_protocol_options": {"accept_http_10": True, "default_host_for_http_10": names.GATEWAY},
        "use_remote_address": True,
        "preserve_external_request_id": True,
        "always_set_request_id_in_response": True,
        "server_header_transformation": "PASS_THROUGH",
        "normalize_path": True,
        "max_request_headers_kb": MAX_HEAD_BYTES >> 10,
        "request_headers_timeout": "10s",
        "request_timeout": f"{settings.request_timeout_s}s",
        "stream_idle_timeout": f"{MAX_ANSWER_S}s",
        "common_http_protocol_options": {"idle_timeout": "300s"},
        "early_header_mutation_extensions": [_early_headers(removed)],
        **_routes(settings),
        "http_filters": _filters(settings),
        "access_log": [_log_to_stdout(), _log_to_picker()],
        "local_reply_config": local_replies.mappers(settings.max_body_bytes),
    }


def _early_headers(removed: Iterable[str]) -> Config:
    """Before anything else: headers of ours are removed, and the request gets its in-flight id.

    So are those by which a client inside of the cluster could set Envoy's timeouts and retries.
    """
    stamp = {"header": {"key": names.HEADER_INFLIGHT_ID, "value": "%UNIQUE_ID%"}}
    return {
        "name": "envoy.http.early_header_mutation.header_mutation",
        "typed_config": {
            "@type": f"{TYPES}.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
            "mutations": [
                {"remove_on_match": {"key_matcher": {"prefix": "x-envoy-"}}},
                *({"remove": name} for name in removed),
                {"append": {**stamp, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}},
            ],
        },
    }


def _routes(settings: BootstrapSettings) -> Config:
    """As they are, or where models have routes of their own from the file that the picker writes."""
    if not settings.serves_without_picker:
        return {"route_config": settings.routes}
    path = {"path": str(settings.directory / ROUTES)}
    source = {"resource_api_version": "V3", "path_config_source": path}
    return {"rds": {"route_config_name": routes.CONFIGURATION, "config_source": source}}


def _filters(settings: BootstrapSettings) -> list[Config]:
    cors = {"name": routes.CORS_FILTER, "typed_config": {"@type": f"{TYPES}.extensions.filters.http.cors.v3.Cors"}}
    return [
        *([cors] if settings.cors_origins else []),
        _picker_filter(settings),
        *([_model_filter()] if settings.serves_without_picker else []),
        _router(),
    ]


def _model_filter() -> Config:
    """Reads the model of a body into metadata, where no cluster is named: the picker did not answer."""
    read = {
        "@type": f"{TYPES}.extensions.filters.http.json_to_metadata.v3.JsonToMetadata",
        "request_rules": {
            "rules": [
                {
                    "selectors": [{"key": routes.MODEL}],
                    "on_present": {"metadata_namespace": routes.METADATA, "key": routes.MODEL},
                }
            ],
            "allow_empty_content_type": True,
            "allow_content_types_regex": {"regex": ".*"},
        },
    }
    header = {"@type": f"{TYPES}.type.matcher.v3.HttpRequestHeaderMatchInput", "header_name": names.HEADER_CLUSTER}
    is_named = {
        "input": {"name": "cluster", "typed_config": header},
        "value_match": {"safe_regex": {"google_re2": {}, "regex": ".+"}},
    }
    skip = {"@type": f"{TYPES}.extensions.filters.common.matcher.action.v3.SkipFilter"}
    matcher = {
        "predicate": {"single_predicate": is_named},
        "on_match": {"action": {"name": "skip", "typed_config": skip}},
    }
    return {
        "name": "envoy.filters.http.match_delegate",
        "typed_config": {
            "@type": f"{TYPES}.extensions.common.matching.v3.ExtensionWithMatcher",
            "extension_config": {"name": "envoy.filters.http.json_to_metadata", "typed_config": read},
            "xds_matcher": {"matcher_list": {"matchers": [matcher]}},
        },
    }


def _picker_filter(settings: BootstrapSettings) -> Config:
    """Headers and whole body of each request go to the picker; answers never do."""
    return {
        "name": "envoy.filters.http.ext_proc",
        "typed_config": {
            "@type": f"{TYPES}.extensions.filters.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": REQUESTS}},
            "message_timeout": f"{settings.message_timeout_s}s",
            "max_message_timeout": f"{MAX_HOLD_S}s",
            "failure_mode_allow": settings.serves_without_picker,
            "mutation_rules": {"allow_envoy": True},
            "processing_mode": {
                "request_header_mode": "SEND",
                "response_header_mode": "SKIP",
                "request_body_mode": "BUFFERED",
                "response_body_mode": "NONE",
                "request_trailer_mode": "SKIP",
                "response_trailer_mode": "SKIP",
            },
        },
    }


def _router() -> Config:
    return {
        "name": "envoy.filters.http.router",
        "typed_config": {
            "@type": f"{TYPES}.extensions.filters.http.router.v3.Router",
            "suppress_envoy_headers": True,
        },
    }


def _log_to_stdout() -> Config:
    """One line per request. Neither query nor headers that carry keys are written."""
    fields = {
        "time": "%START_TIME%",
        "level": "info",
        "request_id": "%REQ(X-REQUEST-ID)%",
        "method": "%REQ(:METHOD)%",
        "path": "%PATH(NQ)%",
        "status": "%RESPONSE_CODE%",
        "details": "%RESPONSE_CODE_DETAILS%",
        "flags": "%RESPONSE_FLAGS%",
        "service": f"%REQ({names.HEADER_CLUSTER})%",
        "endpoint": "%UPSTREAM_HOST%",
        "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
        "bytes_in": "%BYTES_RECEIVED%",
        "bytes_out": "%BYTES_SENT%",
        "duration_ms": "%DURATION%",
        "first_byte_ms": "%RESPONSE_DURATION%",
    }
    return {
        "name": "envoy.access_loggers.stdout",
        "typed_config": {
            "@type": f"{TYPES}.extensions.access_loggers.stream.v3.StdoutAccessLog",
            "log_format": {"json_format": fields},
        },
    }


def _log_to_picker() -> Config:
    """The end of each request, sent at once: it leaves the count of requests in flight."""
    return {
        "name": "envoy.access_loggers.http_grpc",
        "typed_config": {
            "@type": f"{TYPES}.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig",
            "common_config": {
                "log_name": PICKER,
                "transport_api_version": "V3",
                "grpc_service": {"envoy_grpc": {"cluster_name": PICKER}},
                "buffer_size_bytes": LOG_BUFFER_BYTES,
                "buffer_flush_interval": LOG_EVERY,
            },
            "additional_request_headers_to_log": [names.HEADER_INFLIGHT_ID],
        },
    }
