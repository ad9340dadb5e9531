"""Envoy's bootstrap: one listener, the picker as external processor, clusters from a watched file.

Pure data. Written once before Envoy starts, by `kvasir gateway bootstrap`; the listener and its one route never change,
since the picker names the cluster of each request in a header that no client can set.
"""

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from kvasir_api import names
from kvasir_gateway.envoy import local_replies

Config = dict[str, Any]
PICKER = "picker"
BOOTSTRAP = "bootstrap.json"
CLUSTERS = "clusters.json"
PICKER_SOCKET = "picker.sock"
ADMIN_SOCKET = "admin.sock"
TYPES = "type.googleapis.com/envoy"
CONNECTIONS = f"{TYPES}.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig"
CONNECTION_BUFFER_BYTES = 1 << 20
"""Bytes of an answer that wait for a slow reader before the pod's stream is paused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapSettings:
    """Settings of the listener.

    directory: shared by Envoy and picker: files and sockets. message_timeout_s: how long the picker may take to choose.
    idle_timeout_s: silence of a stream that is still alive; the first token of a long prompt may take minutes.
    """

    directory: PurePosixPath
    address: str
    port: int = names.PORT_GATEWAY
    max_body_bytes: int = 8 << 20
    max_connections: int = 20_000
    idle_timeout_s: int = 3600
    request_timeout_s: int = 120
    message_timeout_s: int = 5


def bootstrap(settings: BootstrapSettings) -> Config:
    """The whole document; JSON is YAML to Envoy."""
    directory = settings.directory
    return {
        "node": {"id": names.GATEWAY, "cluster": names.GATEWAY},
        "admin": {"address": {"pipe": {"path": str(directory / ADMIN_SOCKET), "mode": 0o660}}},
        "dynamic_resources": {
            "cds_config": {
                "resource_api_version": "V3",
                "path_config_source": {"path": str(directory / CLUSTERS)},
            }
        },
        "static_resources": {"listeners": [_listener(settings)], "clusters": [_picker_cluster(directory)]},
        "stats_config": {"stats_matcher": {"inclusion_list": {"patterns": _stats()}}},
        "overload_manager": {
            "resource_monitors": [
                {
                    "name": "envoy.resource_monitors.global_downstream_max_connections",
                    "typed_config": {
                        "@type": CONNECTIONS,
                        "max_active_downstream_connections": settings.max_connections,
                    },
                }
            ]
        },
    }


def _stats() -> list[Config]:
    """The counts that the picker reads. Others, many for each cluster, would cost memory and time at each change."""
    return [
        {"prefix": "cluster_manager.cds."},
        {"exact": "http.gateway.downstream_rq_active"},
        {"safe_regex": {"regex": r"cluster\..*\.upstream_rq_(pending_)?active"}},
    ]


def _picker_cluster(directory: PurePosixPath) -> Config:
    socket = {"pipe": {"path": str(directory / PICKER_SOCKET)}}
    return {
        "name": PICKER,
        "type": "STATIC",
        "connect_timeout": "1s",
        "typed_extension_protocol_options": http_options({"http2_protocol_options": {}}),
        "circuit_breakers": unlimited(),
        "load_assignment": {
            "cluster_name": PICKER,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": socket}}]}],
        },
    }


def http_options(protocol: Config, **common: Any) -> Config:
    """The HTTP options of a cluster."""
    kind = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    options = {"@type": f"type.googleapis.com/{kind}", "explicit_http_config": protocol}
    return {kind: {**options, **({"common_http_protocol_options": common} if common else {})}}


def unlimited() -> Config:
    """Limits far above need: the pods' queues and the connections limit the load, not Envoy's defaults of 1,024."""
    most = 1 << 20
    limits = {"max_connections": most, "max_pending_requests": most, "max_requests": most, "max_retries": 1024}
    return {"thresholds": [limits]}


def _listener(settings: BootstrapSettings) -> Config:
    return {
        "name": names.PORT_HTTP_NAME,
        "address": {"socket_address": {"address": settings.address, "port_value": settings.port}},
        "per_connection_buffer_limit_bytes": CONNECTION_BUFFER_BYTES,
        "filter_chains": [
            {
                "filters": [
                    {
                        "name": "envoy.filters.network.http_connection_manager",
                        "typed_config": _connection_manager(settings),
                    }
                ]
            }
        ],
    }


def _connection_manager(settings: BootstrapSettings) -> Config:
    return {
        "@type": f"{TYPES}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "gateway",
        "codec_type": "AUTO",
        "use_remote_address": True,
        "preserve_external_request_id": True,
        "always_set_request_id_in_response": True,
        "server_header_transformation": "PASS_THROUGH",
        "normalize_path": True,
        "request_headers_timeout": "10s",
        "request_timeout": f"{settings.request_timeout_s}s",
        "stream_idle_timeout": f"{settings.idle_timeout_s}s",
        "common_http_protocol_options": {"idle_timeout": "300s"},
        "early_header_mutation_extensions": [_early_headers()],
        "route_config": _routes(settings),
        "http_filters": [_picker_filter(settings), _router()],
        "access_log": [_log_to_stdout(), _log_to_picker()],
        "local_reply_config": local_replies.mappers(settings.max_body_bytes),
    }


def _early_headers() -> Config:
    """Before anything else: headers that only the picker may set are removed, and the request gets its in-flight id."""
    stamp = {"header": {"key": names.HEADER_INFLIGHT_ID, "value": "%UNIQUE_ID%"}}
    return {
        "name": "envoy.http.early_header_mutation.header_mutation",
        "typed_config": {
            "@type": f"{TYPES}.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
            "mutations": [
                {"remove": names.HEADER_DESTINATION},
                {"remove": names.HEADER_CLUSTER},
                {"append": {**stamp, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}},
            ],
        },
    }


def _routes(settings: BootstrapSettings) -> Config:
    """One route: to the cluster that the picker names. Without a whole answer's timeout: streams last.

    Retried only before the first byte of an answer, on another endpoint of the picker's list: `reset` also covers a
    kept connection that the pod closed just now, 503 is what a pod says that has begun to leave or is not ready yet.
    Twice at most, since a request may be what kills a pod.
    """
    retry = {
        "retry_on": "connect-failure,refused-stream,reset,retriable-status-codes",
        "retriable_status_codes": [503],
        "num_retries": 2,
        "retry_host_predicate": [
            {
                "name": "envoy.retry_host_predicates.previous_hosts",
                "typed_config": {
                    "@type": f"{TYPES}.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate",
                },
            }
        ],
        "host_selection_retry_max_attempts": 3,
        "retry_back_off": {"base_interval": "0.025s", "max_interval": "0.25s"},
    }
    route = {
        "cluster_header": names.HEADER_CLUSTER,
        "timeout": "0s",
        "idle_timeout": f"{settings.idle_timeout_s}s",
        "retry_policy": retry,
    }
    return {
        "name": "all",
        "virtual_hosts": [
            {
                "name": "all",
                "domains": ["*"],
                "request_body_buffer_limit": settings.max_body_bytes,
                "routes": [{"match": {"prefix": "/"}, "route": route}],
            }
        ],
    }


def _picker_filter(settings: BootstrapSettings) -> Config:
    """Headers and whole body of each request go to the picker; answers never do."""
    return {
        "name": "envoy.filters.http.ext_proc",
        "typed_config": {
            "@type": f"{TYPES}.extensions.filters.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": PICKER}},
            "message_timeout": f"{settings.message_timeout_s}s",
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
                "buffer_size_bytes": 0,
                "buffer_flush_interval": "0.1s",
            },
            "additional_request_headers_to_log": [names.HEADER_INFLIGHT_ID],
        },
    }
