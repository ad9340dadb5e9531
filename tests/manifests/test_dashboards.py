"""Dashboards: documents of Grafana's own types, and every metric of ours on one of them."""

import json
from pathlib import Path

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from kvasir_api import control_plane_metrics, metrics

ROOT = Path(__file__).parents[2]
FILE = ROOT / "manifests" / "components" / "monitoring" / "dashboards.yaml"
MAPS = list(yaml.safe_load_all(FILE.read_text()))
DASHBOARDS = {name: json.loads(text) for found in MAPS for name, text in found["data"].items()}


def panels(document):
    return [panel for panel in document["panels"] if panel["type"] != "row"]


def test_there_is_one_for_each_purpose():
    assert list(DASHBOARDS) == [f"kvasir-{name}.json" for name in ("fleet", "service", "engine", "autoscaler")]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_grafanas_types_have_every_field(name):
    """Their reader drops what they do not know."""
    document = DASHBOARDS[name]
    assert json.loads(JSONEncoder().encode(Dashboard.from_json(document))) == document


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_lie_beside_one_another(name):
    taken = set()
    for panel in DASHBOARDS[name]["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_title_and_a_letter_name_one_thing(name):
    drawn = panels(DASHBOARDS[name])
    assert len({panel["title"] for panel in drawn}) == len(drawn)
    for panel in drawn:
        assert [target["refId"] for target in panel["targets"]] == ["A", "B", "C", "D"][: len(panel["targets"])]


def test_every_metric_of_ours_is_on_one():
    queries = [t["expr"] for document in DASHBOARDS.values() for panel in panels(document) for t in panel["targets"]]
    declared = (*metrics.RUNTIME, *control_plane_metrics.OPERATOR, *control_plane_metrics.GATEWAY)
    assert [m.name for m in declared if not any(f"{m.name}{end}" in q for q in queries for end in "{_")] == []


def test_grafana_finds_them_by_their_label():
    assert {found["metadata"]["labels"]["grafana_dashboard"] for found in MAPS} == {"1"}
    assert all(len(text.encode()) < 250_000 for found in MAPS for text in found["data"].values())
