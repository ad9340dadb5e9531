"""The chart against a real API server: every object is one that it takes, and applying it again changes nothing."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fakes.operator_rig import ROOT, kubectl

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]
HELM = Path(sys.executable).with_name("helm")
SHARED = {
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}


@pytest.mark.parametrize("alone", [False, True], ids=["cluster", "one namespace"])
def test_applied_twice_it_changes_nothing_the_second_time(control, alone):
    namespace = "chart-alone" if alone else "chart"
    values = ("--set", f"watchNamespace={namespace}") if alone else ()
    kubectl(control, "create", "namespace", namespace)
    chart = str(ROOT / "manifests" / "chart")
    # Rights and definitions are shared with other tests; here they are only tried.
    rendered = subprocess.run(
        [HELM, "template", "kvasir", chart, "--skip-tests", "--namespace", namespace, *values],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    said = kubectl(control, "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-", text=rendered)
    assert "kvasir-operator serverside-applied" in said
    kept = [document for document in yaml.safe_load_all(rendered) if document and document["kind"] not in SHARED]
    own = yaml.safe_dump_all(kept)
    kubectl(control, "apply", "--server-side", "-f", "-", text=own)
    versions = ("get", "deployment,service,poddisruptionbudget,serviceaccount,role", f"--namespace={namespace}", "-o")
    listed = (*versions, "jsonpath={range .items[*]}{.kind}/{.metadata.name}={.metadata.generation} {end}")
    before = kubectl(control, *listed)
    assert "Deployment/kvasir-operator=" in before
    kubectl(control, "apply", "--server-side", "-f", "-", text=own)
    assert kubectl(control, *listed) == before
    kubectl(control, "delete", "namespace", namespace, "--wait=false")


def test_releases_for_two_namespaces_are_installed_side_by_side_and_leave_alone(control):
    """Definitions and what is shared are those of the cluster that the tests have."""

    def helm(*arguments):
        command = [HELM, *arguments, f"--kubeconfig={control.kubeconfig}"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout

    def rights(of):
        found = kubectl(control, "get", "clusterroles,clusterrolebindings", "-o", "name").split()
        return {name.partition("/")[2] for name in found if name.endswith(f"-{of}")}

    chart = str(ROOT / "manifests" / "chart")
    for of in ("side-a", "side-b"):
        kubectl(control, "create", "namespace", of)
        values = f"watchNamespace={of},crds.install=false,shared.install=false"
        helm("install", "kvasir", chart, "--namespace", f"{of}-system", "--create-namespace", "--set", values)
    wanted = {"kvasir-operator", "kvasir-gateway", "kvasir-operator-cluster"}
    helm("uninstall", "kvasir", "--namespace", "side-a-system", "--cascade=background")
    assert rights("side-a") == set()
    assert rights("side-b") == {f"{name}-side-b" for name in wanted}
    helm("uninstall", "kvasir", "--namespace", "side-b-system", "--cascade=background")
    for of in ("side-a", "side-b"):
        kubectl(control, "delete", "namespace", of, f"{of}-system", "--wait=false")


def test_the_sample_of_an_ingress_is_one_that_the_api_server_takes(control):
    sample = (
        (ROOT / "manifests" / "samples" / "gateway" / "ingress.yaml").read_text().replace("kvasir-system", "default")
    )
    said = kubectl(control, "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", text=sample)
    assert "ingress.networking.k8s.io/kvasir-gateway serverside-applied" in said
