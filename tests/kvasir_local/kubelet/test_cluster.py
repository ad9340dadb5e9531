"""Which policies operator and gateway get on real nodes."""

from pathlib import Path

import yaml

from kvasir_local.kubelet import cluster
from kvasir_local.kubelet.network import API_SERVER_PORT

COMPONENTS = Path(__file__).parents[3] / "manifests" / "components"


def test_policies_are_installed_where_they_let_the_api_server_be_reached_and_not_elsewhere():
    assert cluster.policies_at(API_SERVER_PORT + 1) == ""
    found = COMPONENTS / cluster.policies_at(API_SERVER_PORT)
    for name in ("operator", "gateway"):
        egress = yaml.safe_load((found / f"{name}.yaml").read_text())["spec"]["egress"]
        admitted = {port["port"] for rule in egress if "to" not in rule for port in rule["ports"]}
        assert API_SERVER_PORT in admitted
        assert API_SERVER_PORT + 1 not in admitted
