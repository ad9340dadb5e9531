"""The chart on real nodes. The last file: what it installs stays."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvasir_api import names
from kvasir_local import kubectl
from outside.real_nodes.service import StreamLoad, rolled_out

pytestmark = pytest.mark.timeout(900)

CHART = Path(__file__).parents[3] / "manifests" / "chart"
HELM = Path(sys.executable).with_name("helm")


def helm(real, *words):
    command = [HELM, *words, f"--namespace={names.SYSTEM_NAMESPACE}"]
    environment = {**os.environ, "KUBECONFIG": str(real.kubeconfig)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=400)


def restarts(service):
    return {
        pod["metadata"]["uid"]: [status["restartCount"] for status in pod["status"]["containerStatuses"]]
        for pod in service.pods()
    }


def test_a_chart_takes_over_an_installation_under_streams_and_passes_its_test(real, served):
    """No replica is touched, no stream breaks, and `helm test` says that the gateway answers."""
    program = [*real.kubectl, f"--namespace={names.SYSTEM_NAMESPACE}"]
    operator = json.loads(kubectl.run(program, "get", "deploy", "kvasir-operator", "--output=json"))
    tag = operator["spec"]["template"]["spec"]["containers"][0]["image"].rpartition(":")[2]
    before = restarts(served)
    with StreamLoad(served) as load:
        load.until_more()
        done = helm(real, "install", "kvasir", CHART, "--take-ownership", "--set", f"images.tag={tag}")
        assert done.returncode == 0, done.stderr
        for name in ("kvasir-operator", "kvasir-gateway"):
            served.until(lambda name=name: rolled_out(program, name), f"{name} runs as the chart has it")
        load.until_more()
    assert set(load.ends) == {"length"}
    assert restarts(served) == before
    served.until_ready()
    asked = helm(real, "test", "kvasir", "--logs", "--timeout=3m")
    assert asked.returncode == 0, asked.stdout + asked.stderr
    assert served.namespace in asked.stdout, "the gateway's list of models lacks the service"
