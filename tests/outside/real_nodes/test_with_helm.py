"""The chart on real nodes. The last file: what it installs stays."""

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from kvasir_api import names
from kvasir_local import kubectl
from outside.real_nodes.service import StreamLoad, restarts, rolled_out

pytestmark = pytest.mark.timeout(900)

CHART = Path(__file__).parents[3] / "manifests" / "chart"
HELM = Path(sys.executable).with_name("helm")


def helm(real, *words):
    command = [HELM, *words, f"--namespace={names.SYSTEM_NAMESPACE}"]
    environment = {**os.environ, "KUBECONFIG": str(real.kubeconfig)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=400)


def own_images(real):
    """The images of the installation as settings of the chart."""
    program = [*real.kubectl, f"--namespace={names.SYSTEM_NAMESPACE}"]
    pods = json.loads(kubectl.run(program, "get", "deploy", names.GATEWAY, "--output=json"))["spec"]["template"]["spec"]
    used = {container["name"]: container["image"] for container in pods["containers"]}
    registry, _, tag = used["picker"].partition(f"{names.IMAGE_GATEWAY}:")
    settings = (f"images.registry={registry}", f"images.tag={tag}", f"gateway.envoy.image={used['envoy']}")
    return [word for setting in settings for word in ("--set", setting)]


def previous_chart(directory):
    """The chart before its last change, of the repository's history; None where a checkout has none."""
    git = ["git", "-C", str(CHART)]
    log = subprocess.run(
        [*git, "log", "--format=%H", "-n", "2", "--", "."], capture_output=True, text=True, check=False
    )
    commits = log.stdout.split()
    if len(commits) < 2:
        return None
    archive = subprocess.run([*git, "archive", commits[1], "."], capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(directory, filter="data")
    return directory


def rolled_out_under_streams(real, service, *words):
    """A helm command that no replica and no stream feels."""
    program = [*real.kubectl, f"--namespace={names.SYSTEM_NAMESPACE}"]
    settings = (*own_images(real), "--set", "networkPolicies.enabled=true")
    before = restarts(service)
    with StreamLoad(service) as load:
        load.until_more()
        done = helm(real, *words, *settings)
        assert done.returncode == 0, done.stderr
        for name in ("kvasir-operator", "kvasir-gateway"):
            service.until(lambda name=name: rolled_out(program, name), f"{name} runs as the chart has it")
        load.until_more()
    assert set(load.ends) == {"length"}
    assert restarts(service) == before
    service.until_ready()


def test_a_chart_takes_over_an_installation_under_streams_and_its_next_version_follows(real, served, tmp_path):
    previous = previous_chart(tmp_path)
    rolled_out_under_streams(real, served, "install", "kvasir", previous or CHART, "--take-ownership")
    # Without a history: the same chart again, in which the pods change.
    changed = () if previous else ("--set", "operator.resources.requests.memory=129Mi")
    rolled_out_under_streams(real, served, "upgrade", "kvasir", CHART, *changed)


def test_the_chart_tests_what_it_has_installed(real, served):
    asked = helm(real, "test", "kvasir", "--logs", "--timeout=3m")
    assert asked.returncode == 0, asked.stdout + asked.stderr
    assert served.namespace in asked.stdout, "the gateway's list of models lacks the service"
