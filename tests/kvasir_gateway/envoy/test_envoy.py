"""What Envoy is given: complete files only, versions that follow the content, nothing that a client could steer."""

import json
from pathlib import PurePosixPath

import pytest

from kvasir_api import names
from kvasir_gateway.envoy import bootstrap, clusters, files, local_replies

SETTINGS = bootstrap.BootstrapSettings(
    directory=PurePosixPath("/run/x"), address="10.0.0.1", port=80, max_body_bytes=4096
)


def walk(node):
    yield node
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from walk(child)


def test_a_version_is_its_content():
    one = clusters.clusters_file({"ns.a": ["10.0.0.1:8000"]})
    assert one == clusters.clusters_file({"ns.a": ["10.0.0.1:8000"]})
    assert one.version != clusters.clusters_file({"ns.a": ["10.0.0.2:8000"]}).version
    assert one.version != clusters.clusters_file({"ns.b": ["10.0.0.1:8000"]}).version
    assert json.loads(one.content)["version_info"] == one.version
    assert one.clusters == {"ns.a"}


def test_addresses_become_socket_addresses():
    content = json.loads(clusters.clusters_file({"ns.a": ["10.0.0.1:8000", "[fd00::7]:9000"]}).content)
    found = [node["socket_address"] for node in walk(content) if isinstance(node, dict) and "socket_address" in node]
    assert found == [{"address": "10.0.0.1", "port_value": 8000}, {"address": "fd00::7", "port_value": 9000}]


def test_a_service_without_endpoints_keeps_its_cluster():
    content = json.loads(clusters.clusters_file({"ns.a": []}).content)
    assert content["resources"][0]["load_assignment"]["endpoints"] == [{"priority": 0, "lb_endpoints": []}]


@pytest.mark.parametrize(
    ("last_resort", "ports"),
    [(set(), [[1, 2]]), ({"10.0.0.1:1"}, [[2], [1]]), ({"10.0.0.1:1", "10.0.0.1:2"}, [[1, 2]])],
)
def test_pods_of_last_resort_come_after_all_others(last_resort, ports):
    found = clusters.clusters_file({"ns.a": ["10.0.0.1:1", "10.0.0.1:2"]}, last_resort=last_resort)
    groups = json.loads(found.content)["resources"][0]["load_assignment"]["endpoints"]
    listed = [
        [host["endpoint"]["address"]["socket_address"]["port_value"] for host in group["lb_endpoints"]]
        for group in groups
    ]
    assert (listed, [group["priority"] for group in groups]) == (ports, list(range(len(ports))))


def test_headers_of_ours_are_removed_before_anything_reads_them():
    mutations = [
        node["mutations"]
        for node in walk(bootstrap.bootstrap(SETTINGS))
        if isinstance(node, dict) and "mutations" in node
    ]
    removed = {m["remove"] for m in mutations[0] if "remove" in m}
    stamped = {m["append"]["header"]["key"]: m["append"]["append_action"] for m in mutations[0] if "append" in m}
    assert removed == {names.HEADER_DESTINATION, names.HEADER_CLUSTER}
    assert stamped == {names.HEADER_INFLIGHT_ID: "OVERWRITE_IF_EXISTS_OR_ADD"}


def test_only_the_listener_is_on_the_network():
    found = [node for node in walk(bootstrap.bootstrap(SETTINGS)) if isinstance(node, dict)]
    assert [n["socket_address"] for n in found if "socket_address" in n] == [{"address": "10.0.0.1", "port_value": 80}]
    assert sorted(n["pipe"]["path"] for n in found if "pipe" in n) == ["/run/x/admin.sock", "/run/x/picker.sock"]


def test_the_access_log_writes_no_key():
    text = json.dumps(bootstrap.bootstrap(SETTINGS)).lower()
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


def test_the_bootstrap_leaves_clusters_that_are_there(tmp_path):
    settings = bootstrap.BootstrapSettings(directory=PurePosixPath(tmp_path), address="127.0.0.1")
    files.write_bootstrap(settings)
    assert json.loads((tmp_path / bootstrap.CLUSTERS).read_bytes())["resources"] == []
    files.write_clusters(tmp_path, clusters.clusters_file({"ns.a": []}))
    files.write_bootstrap(settings)
    assert len(json.loads((tmp_path / bootstrap.CLUSTERS).read_bytes())["resources"]) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [bootstrap.BOOTSTRAP, bootstrap.CLUSTERS]


def test_a_file_that_cannot_be_put_in_place_leaves_nothing(tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "inside").touch()
    with pytest.raises(OSError, match="taken"):
        files.replace(tmp_path / "taken", b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
