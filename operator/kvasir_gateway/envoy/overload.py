"""What Envoy refuses so that it lives on: connections beyond a number, and requests while its memory is short.

Pure data for the bootstrap. Envoy keeps each body until the picker has chosen: clients that send many large ones slowly
would otherwise have the kernel kill it, with the streams of all others.
"""

from typing import Any, Final

from kvasir_api import names

Config = dict[str, Any]
MONITORS: Final = "envoy.resource_monitors"
CONNECTIONS: Final = f"{MONITORS}.global_downstream_max_connections"
HEAP: Final = f"{MONITORS}.fixed_heap"
TYPES: Final = "type.googleapis.com/envoy.extensions.resource_monitors"
GIVE_BACK_AT, REFUSE_AT = 0.8, 0.95
"""Of the heap: from where on freed memory goes back to the kernel, and requests are refused."""
LOOK_S: Final = 0.1


def limits(*, max_connections: int, max_heap_bytes: int) -> Config:
    """Parts of the bootstrap document.

    Connections are limited at the clients' listener alone: clients that take all of them leave the relay its own. Not
    by `ignore_global_conn_limit` of the inner listener: each connection that closes there would give back one of the
    clients' that it never took. The monitor of connections limits nothing; without it Envoy warns.
    """
    limit = f"envoy.resource_limits.listener.{names.PORT_HTTP_NAME}.connection_limit"
    connections = {"@type": f"{TYPES}.downstream_connections.v3.DownstreamConnectionsConfig"}
    heap = {"@type": f"{TYPES}.fixed_heap.v3.FixedHeapConfig", "max_heap_size_bytes": max_heap_bytes}
    return {
        "layered_runtime": {"layers": [{"name": "limits", "static_layer": {limit: max_connections}}]},
        "overload_manager": {
            "refresh_interval": f"{LOOK_S}s",
            "resource_monitors": [
                {"name": CONNECTIONS, "typed_config": {**connections, "max_active_downstream_connections": 1 << 31}},
                {"name": HEAP, "typed_config": heap},
            ],
            "actions": [_action("shrink_heap", GIVE_BACK_AT), _action("stop_accepting_requests", REFUSE_AT)],
        },
    }


def _action(name: str, threshold: float) -> Config:
    trigger = {"name": HEAP, "threshold": {"value": threshold}}
    return {"name": f"envoy.overload_actions.{name}", "triggers": [trigger]}
