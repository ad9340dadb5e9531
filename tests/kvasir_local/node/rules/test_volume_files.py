"""Files of volumes that show API objects."""

import base64

import pytest

from kvasir_local.node.rules import volume_files
from kvasir_local.node.rules.downward_api import PodPlacement
from kvasir_local.node.rules.environment import NamespaceConfig
from kvasir_local.node.rules.kinds import ConfigError
from kvasir_local.node.rules.volume_files import TokenProjection, VolumeFile

PLACE = PodPlacement(pod_ip="127.20.0.7", host_ip="127.0.0.1", node_name="n0", allocatable={})
POD = {"metadata": {"name": "p", "namespace": "ns", "uid": "u", "labels": {"a": "1"}}, "spec": {"containers": []}}
SOURCES = NamespaceConfig(
    {"conf": {"data": {"x": "1", "y": "2"}}}, {"pass": {"data": {"k": base64.b64encode(b"s").decode()}}}
)
WISH = TokenProjection("", 3607)


def files(volume: dict) -> dict[str, VolumeFile]:
    return volume_files.files(POD, volume, placement=PLACE, sources=SOURCES, tokens={WISH: "jwt"})


def test_a_config_map_is_a_file_per_key():
    assert files({"configMap": {"name": "conf", "defaultMode": 0o400}}) == {
        "x": VolumeFile(b"1", 0o400),
        "y": VolumeFile(b"2", 0o400),
    }


def test_items_choose_paths_and_modes():
    volume = {"secret": {"secretName": "pass", "items": [{"key": "k", "path": "deep/er", "mode": 0o440}]}}
    assert files(volume) == {"deep/er": VolumeFile(b"s", 0o440)}


def test_a_projected_volume_joins_its_sources():
    sources = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "conf", "items": [{"key": "x", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]
    volume = {"projected": {"sources": sources, "defaultMode": 0o644}}
    assert volume_files.token_projections(volume) == (WISH,)
    assert files(volume) == {
        "token": VolumeFile(b"jwt", 0o600),
        "ca.crt": VolumeFile(b"1", 0o644),
        "namespace": VolumeFile(b"ns", 0o644),
    }


def test_labels_can_be_a_file():
    volume = {"downwardAPI": {"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]}}
    assert files(volume) == {"l": VolumeFile(b'a="1"', 0o644)}


@pytest.mark.parametrize(
    ("volume", "match"),
    [
        ({"configMap": {"name": "none"}}, 'configmap "none" not found'),
        ({"configMap": {"name": "conf", "items": [{"key": "z", "path": "z"}]}}, "has no key 'z'"),
        ({"configMap": {"name": "conf", "items": [{"key": "x", "path": "../x"}]}}, "must stay inside"),
    ],
)
def test_what_is_missing_is_named(volume: dict, match: str):
    with pytest.raises(ConfigError, match=match):
        files(volume)


def test_an_optional_source_may_be_missing():
    assert files({"secret": {"secretName": "none", "optional": True}}) == {}
