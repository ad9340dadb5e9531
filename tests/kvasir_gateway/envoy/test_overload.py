"""What Envoy refuses before it has no memory left."""

from kvasir_gateway.envoy import overload


def test_requests_are_refused_before_the_heap_is_full_and_memory_is_given_back_before_that():
    manager = overload.limits(max_connections=7, max_heap_bytes=1 << 30)["overload_manager"]
    heap = {m["name"]: m["typed_config"] for m in manager["resource_monitors"]}["envoy.resource_monitors.fixed_heap"]
    assert heap["max_heap_size_bytes"] == 1 << 30
    thresholds = {
        action["name"]: trigger["threshold"]["value"]
        for action in manager["actions"]
        for trigger in action["triggers"]
        if trigger["name"] == "envoy.resource_monitors.fixed_heap"
    }
    given_back = thresholds["envoy.overload_actions.shrink_heap"]
    assert 0 < given_back < thresholds["envoy.overload_actions.stop_accepting_requests"] < 1


def test_connections_are_limited_at_the_clients_listener_alone():
    (layer,) = overload.limits(max_connections=7, max_heap_bytes=1 << 30)["layered_runtime"]["layers"]
    assert layer["static_layer"] == {"envoy.resource_limits.listener.http.connection_limit": 7}
