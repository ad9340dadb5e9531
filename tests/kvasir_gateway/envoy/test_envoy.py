"""What Envoy is given: complete files only, versions that follow the content, nothing that a client could steer."""

import json
from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from kvasir_api import names
from kvasir_gateway.envoy import bootstrap, clusters, edge_tls, files, local_replies, routes
from kvasir_gateway.envoy.routes import RouteSettings

SETTINGS = bootstrap.BootstrapSettings(
    directory=PurePosixPath("/run/x"), address="10.0.0.1", port=80, max_body_bytes=4096
)


def walk(node):
    yield node
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from walk(child)


def test_a_version_is_its_content():
    one = clusters.encoded(clusters.cluster("ns.a", ["10.0.0.1:8000"]))
    assert one == clusters.encoded(clusters.cluster("ns.a", ["10.0.0.1:8000"]))
    assert one.version != clusters.encoded(clusters.cluster("ns.a", ["10.0.0.2:8000"])).version
    assert one.version != clusters.encoded(clusters.cluster("ns.b", ["10.0.0.1:8000"])).version
    assert one.reachable
    assert not clusters.encoded(clusters.cluster("ns.a", [])).reachable


def test_addresses_become_socket_addresses():
    found = clusters.cluster("ns.a", ["10.0.0.1:8000", "[fd00::7]:9000"])
    assert (found.name, found.load_assignment.cluster_name) == ("ns.a", "ns.a")
    assert hosts(found) == [[("10.0.0.1", 8000), ("fd00::7", 9000)]]


def hosts(found):
    return [
        [
            (host.address, host.port_value)
            for host in (one.endpoint.address.socket_address for one in group.lb_endpoints)
        ]
        for group in found.load_assignment.endpoints
    ]


def test_an_address_that_is_none_is_refused():
    with pytest.raises(ValueError, match="example"):
        clusters.cluster("ns.a", ["example.com:8000"])


def test_a_service_without_endpoints_keeps_its_cluster():
    assert hosts(clusters.cluster("ns.a", [])) == [[]]


@pytest.mark.parametrize(
    ("last_resort", "ports"),
    [(set(), [[1, 2]]), ({"10.0.0.1:1"}, [[2], [1]]), ({"10.0.0.1:1", "10.0.0.1:2"}, [[1, 2]])],
)
def test_pods_of_last_resort_come_after_all_others(last_resort, ports):
    found = clusters.cluster("ns.a", ["10.0.0.1:1", "10.0.0.1:2"], last_resort=last_resort)
    assert [[port for _, port in group] for group in hosts(found)] == ports
    assert [group.priority for group in found.load_assignment.endpoints] == list(range(len(ports)))


def test_headers_of_ours_are_removed_before_anything_reads_them():
    """Of clients; what comes from the relay is known by its header."""
    mutations = [
        node["mutations"]
        for node in walk(bootstrap.bootstrap(SETTINGS))
        if isinstance(node, dict) and "mutations" in node
    ]
    removed, of_relay = ({m["remove"] for m in found if "remove" in m} for found in mutations)
    stamped = {m["append"]["header"]["key"]: m["append"]["append_action"] for m in mutations[0] if "append" in m}
    prefixes = [m["remove_on_match"] for m in mutations[0] if "remove_on_match" in m]
    ours = {names.HEADER_DESTINATION, names.HEADER_CLUSTER, names.HEADER_STREAM, names.HEADER_FALLBACK}
    ours |= {names.HEADER_BACKEND, names.HEADER_BACKEND_MODEL, names.HEADER_KV_PEER, names.HEADER_REFER}
    assert of_relay == ours | set(names.HEADERS_RATE_LIMIT)
    relays = {names.HEADER_RELAYED, names.HEADER_SERVICE, names.HEADER_TRIED, names.HEADER_ANSWER}
    assert removed == of_relay | relays
    assert prefixes == [{"key_matcher": {"prefix": "x-envoy-"}}], "Envoy's own, by which timeouts and retries are set"
    assert stamped == {names.HEADER_INFLIGHT_ID: "OVERWRITE_IF_EXISTS_OR_ADD"}


def test_a_request_comes_back_from_a_replica_only_where_the_picker_says_so():
    (host,) = routes.route_configuration(RouteSettings(max_body_bytes=1, idle_timeout_s=1))["virtual_hosts"]
    follows = [route for route in host["routes"] if "internal_redirect_policy" in route["route"]]
    assert len(follows) == 2
    for route in follows:
        assert {"name": names.HEADER_REFER, "present_match": True} in route["match"]["headers"]
        assert route["route"]["internal_redirect_policy"] == {
            "max_internal_redirects": 3,
            "redirect_response_codes": [307],
            "allow_cross_scheme_redirect": True,
        }


def test_a_request_goes_to_the_relay_again_only_where_no_connection_was_made():
    """It may have begun, and to a replica the relay sends it again by itself."""
    (host,) = routes.route_configuration(RouteSettings(max_body_bytes=1, idle_timeout_s=1))["virtual_hosts"]
    (policy,) = (
        route["route"]["retry_policy"] for route in host["routes"] if route["route"].get("cluster") == routes.RELAY
    )
    assert policy["retry_on"] == "connect-failure"


def test_the_server_for_external_backends_gets_no_key():
    """A tenant may send it in either header."""
    (host,) = routes.route_configuration(RouteSettings(max_body_bytes=1, idle_timeout_s=1))["virtual_hosts"]
    removed = {
        route["route"].get("cluster"): route["request_headers_to_remove"]
        for route in host["routes"]
        if "request_headers_to_remove" in route
    }
    assert removed.keys() == {routes.BACKENDS}
    assert {"authorization", "x-api-key", "cookie"} <= set(removed[routes.BACKENDS])


def test_only_the_listener_is_on_the_network():
    found = [node for node in walk(bootstrap.bootstrap(SETTINGS)) if isinstance(node, dict)]
    assert [n["socket_address"] for n in found if "socket_address" in n] == [{"address": "10.0.0.1", "port_value": 80}]
    sockets = {n["pipe"]["path"] for n in found if "pipe" in n}
    assert sockets == {f"/run/x/{name}.sock" for name in ("admin", "picker", "requests", "inner", "relay", "backends")}


def test_the_access_log_writes_no_key():
    found = [node for node in walk(bootstrap.bootstrap(SETTINGS)) if isinstance(node, dict)]
    logs = [node["access_log"] for node in found if "access_log" in node]
    text = json.dumps(logs).lower()
    assert "envoy.access_loggers.stdout" in text
    assert "authorization" not in text
    assert "%req(:path)%" not in text


def test_every_reply_of_envoy_has_openais_shape():
    found = local_replies.mappers(4096)["mappers"]
    for mapper in found:
        override = mapper["body_format_override"]
        error = json.loads(override["text_format_source"]["inline_string"].replace("%%", "%"))["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert override["content_type"] == "application/json"
    assert "4096" in found[0]["body_format_override"]["text_format_source"]["inline_string"]


@pytest.mark.parametrize(("address", "compatible"), [("10.0.0.1", False), ("fd00::1", False), ("::", True)])
def test_a_listener_of_every_address_takes_ipv4_too(address, compatible):
    found, _ = bootstrap.bootstrap(replace(SETTINGS, address=address))["static_resources"]["listeners"]
    socket = found["address"]["socket_address"]
    assert (socket["address"], socket.get("ipv4_compat", False)) == (address, compatible)


def test_the_bootstrap_is_all_that_there_is_before_a_picker(tmp_path):
    settings = bootstrap.BootstrapSettings(directory=PurePosixPath(tmp_path), address="127.0.0.1")
    files.write_bootstrap(settings)
    assert [path.name for path in tmp_path.iterdir()] == [bootstrap.BOOTSTRAP]
    files.write_model_routes(tmp_path, {"m": "ns.a"})
    assert not (tmp_path / bootstrap.ROUTES).exists(), "the bootstrap did not ask for them"


def models_of(directory):
    (found,) = json.loads((directory / bootstrap.ROUTES).read_bytes())["resources"]
    (host,) = found["virtual_hosts"]
    return [route["name"] for route in host["routes"] if "name" in route], host["routes"][-1]


def test_models_have_routes_where_requests_are_served_without_a_picker(tmp_path):
    settings = bootstrap.BootstrapSettings(
        directory=PurePosixPath(tmp_path), address="127.0.0.1", serves_without_picker=True
    )
    files.write_bootstrap(settings)
    assert models_of(tmp_path)[0] == []
    files.write_model_routes(tmp_path, {"a": "ns.a", "b": "ns.b"})
    files.write_model_routes(tmp_path, {"b": "ns.b"})
    named, last = models_of(tmp_path)
    assert named == ["model b", "model b"], "for OpenAI's paths and Ollama's; those that were there before are gone"
    assert last["route"]["cluster_header"] == names.HEADER_CLUSTER
    files.write_bootstrap(bootstrap.BootstrapSettings(directory=PurePosixPath(tmp_path), address="127.0.0.1"))
    assert not (tmp_path / bootstrap.ROUTES).exists()


def test_the_certificate_is_named_by_its_directory(tmp_path):
    settings = bootstrap.BootstrapSettings(
        directory=PurePosixPath(tmp_path), address="127.0.0.1", tls_directory=PurePosixPath("/tls")
    )
    files.write_bootstrap(settings)
    (secret,) = json.loads((tmp_path / edge_tls.SECRET_FILE).read_bytes())["resources"]
    assert secret["tls_certificate"]["watched_directory"] == {"path": "/tls"}
    listeners = bootstrap.bootstrap(settings)["static_resources"]["listeners"]
    assert ["transport_socket" in listener["filter_chains"][0] for listener in listeners] == [True, False]


def test_a_file_that_cannot_be_put_in_place_leaves_nothing(tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "inside").touch()
    with pytest.raises(OSError, match="taken"):
        files.replace(tmp_path / "taken", b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
