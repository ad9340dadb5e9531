"""The samples by which clients outside of a cluster reach the gateway lead to its Service, and cut no stream."""

from pathlib import Path
from typing import Any

import pytest
import yaml

MANIFESTS = Path(__file__).parents[2] / "manifests"


def sample(name: str) -> Any:
    (found,) = yaml.safe_load_all((MANIFESTS / "samples" / "gateway" / f"{name}.yaml").read_text())
    return found


def gateway() -> Any:
    """The Service of the gateway's clients."""
    found = [
        document
        for path in (MANIFESTS / "base" / "gateway").glob("*.yaml")
        for document in yaml.safe_load_all(path.read_text())
        if document["kind"] == "Service" and document["metadata"]["name"] == "kvasir-gateway"
    ]
    (service,) = found
    return service


@pytest.mark.parametrize("name", ["ingress", "http-route"])
def test_it_is_in_the_gateways_namespace_since_it_may_name_no_other_service(name: str) -> None:
    assert sample(name)["metadata"]["namespace"] == gateway()["metadata"]["namespace"]


def test_an_ingress_leads_the_api_to_the_gateway_unbuffered() -> None:
    found = sample("ingress")
    ((rule,), (tls,)) = found["spec"]["rules"], found["spec"]["tls"]
    assert rule["host"] in tls["hosts"]
    (path,) = rule["http"]["paths"]
    assert (path["path"], path["pathType"]) == ("/v1", "Prefix")
    ports = {port["name"] for port in gateway()["spec"]["ports"]}
    assert path["backend"]["service"]["name"] == gateway()["metadata"]["name"]
    assert path["backend"]["service"]["port"]["name"] in ports
    told = {name.rpartition("/")[2]: value for name, value in found["metadata"]["annotations"].items()}
    assert told == {
        "proxy-buffering": "off",
        "proxy-request-buffering": "off",
        "proxy-read-timeout": "3600",
        "proxy-send-timeout": "3600",
        "proxy-body-size": "0",
        "proxy-next-upstream": "off",
    }


def test_a_route_leads_the_api_to_the_gateway_without_a_timeout_of_its_own() -> None:
    (rule,) = sample("http-route")["spec"]["rules"]
    assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": "/v1"}}]
    assert rule["timeouts"] == {"request": "0s", "backendRequest": "0s"}
    (backend,) = rule["backendRefs"]
    assert backend["name"] == gateway()["metadata"]["name"]
    assert backend["port"] in {port["port"] for port in gateway()["spec"]["ports"]}
