"""What the guides show, typed into a shell of a real cluster, with operator, gateway and a small model on processors.

Manifests are applied as they are shown, but for what this machine has not: their model is the small one, and they have
no accelerator. As they are shown the API server checks them. What would change the shared installation is rendered.
"""

import asyncio
import json
import os
import shutil
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fakes import hub, pipelines
from fakes.guides import OWN, PAGES, ROOT, execute, files, script
from fakes.life import DEADLINE_S, SAMPLE
from fakes.models import QWEN3_8B
from fakes.operator_rig import account_kubeconfig
from kvasir_api import names
from kvasir_kube.client import Client, configuration
from kvasir_local import kubectl, stack
from kvasir_local.control_plane import ControlPlane
from kvasir_local.demo.scenario import put_model

NAMESPACE = "models"
LIMIT_S = 150
READY = "inferenceservice.serving.kvasir.dev/chat condition met"
ANSWER = '"finish_reason"'
PRINTED = {
    "ci": ("rolebinding.rbac.authorization.k8s.io/deployer created", "yes"),
    "compliance": ('"service":"chat"', "kvasir-local Apply", "chat-"),
    "from-vllm-deployment": ("it fits", READY, ANSWER),
    "gpu-cluster": (
        "it fits",
        READY,
        ANSWER,
        "inferenceservice.serving.kvasir.dev/absent condition met",
        "InvalidSpec",
    ),
    "sizing": ("8.24 GiB", "63,210 tokens of 144.0 KiB", "1.93 requests", "4,269", "32 answered, 0 failed"),
    "troubleshooting": (
        "Reason:                AllReplicasReady",
        "service models/chat: 1 of 1 replicas ready",
        "chat-",
        "InferenceService/chat",
    ),
    "upgrade-and-recovery": (READY, "inferenceservice.serving.kvasir.dev/chat serverside-applied"),
}
"""Of each guide some of what its reader reads."""
VALUES = {"values.yaml": next(files(page) for page in PAGES if page.stem == "gpu-cluster")["values.yaml"]}
"""Of Helm, which a reader keeps from the first guide on."""
pytestmark = [
    pytest.mark.timeout(2 * LIMIT_S),
    pytest.mark.skipif(shutil.which("curl") is None, reason="the guides ask by curl"),
]


@pytest.fixture(scope="module")
def typed(installed: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a shell whose kubectl, helm and kvasir are ours, and whose cluster is this one."""
    home = tmp_path_factory.mktemp("guides")
    (home / "bin").mkdir()
    _program(home / "bin/kubectl", f'exec {installed.kubectl[0]} "$@"')
    _program(home / "bin/helm", f'[[ $1 != upgrade ]] || set -- template "${{@:3}}"; exec {OWN}/helm "$@" > /dev/null')
    shutil.copy(installed.kubeconfig, home / "kubeconfig")
    (home / "kubeconfig").chmod(0o600)
    kubectl.run(installed.kubectl, "create", "namespace", NAMESPACE)
    yield {
        "PATH": os.pathsep.join([str(home / "bin"), str(OWN), os.environ["PATH"]]),
        "KUBECONFIG": str(home / "kubeconfig"),
        "GATEWAY": stack.gateway_url(installed),
        "API_KEY": "any, as the namespace has no tenants",
    }
    kubectl.run(installed.kubectl, "delete", "infsvc", "--all", f"--namespace={NAMESPACE}")
    kubectl.run(installed.kubectl, "delete", "acceleratorclasses", "--all")
    kubectl.run(installed.kubectl, "delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture(scope="module")
def chat(installed: ControlPlane, typed: dict[str, str]) -> None:
    """The service that the guides speak of, with its model; it has answered a request."""

    async def model() -> None:
        async with Client(await configuration(typed["KUBECONFIG"])) as client:
            await put_model(client, SAMPLE, namespace=NAMESPACE, deadline_s=DEADLINE_S)

    asyncio.run(model())
    service = {**_sample(), "metadata": {"name": "chat", "namespace": NAMESPACE}}
    kubectl.apply(installed.kubectl, json.dumps(service))
    ready = "--for=jsonpath='{.status.conditions[?(@.type==\"Ready\")].reason}=AllReplicasReady'"
    execute(f"kubectl wait infsvc/chat --namespace={NAMESPACE} {ready} --timeout=120s", ROOT, limit_s=LIMIT_S, **typed)
    body = json.dumps({"model": "chat", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}).encode()
    request = urllib.request.Request(f"{typed['GATEWAY']}/v1/chat/completions", body)
    request.add_header("content-type", "application/json")
    urllib.request.urlopen(request, timeout=DEADLINE_S).close()
    log = ("logs", "deployment/kvasir-gateway", "--container=picker", f"--namespace={names.SYSTEM_NAMESPACE}")
    deadline = time.monotonic() + DEADLINE_S
    while '"service":"chat"' not in kubectl.run(installed.kubectl, *log):
        assert time.monotonic() < deadline, "the request is in the audit log"
        time.sleep(0.05)


@pytest.mark.usefixtures("chat")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_reader_of_a_guide_gets_what_it_says(
    installed: ControlPlane, typed: dict[str, str], tmp_path: Path, page: Path
) -> None:
    written = {**VALUES, **files(page)}
    for name, documents in written.items():
        shown = yaml.safe_dump_all(documents)
        if name not in VALUES:
            kubectl.run(installed.kubectl, "apply", "--dry-run=server", "--filename=-", stdin=shown)
        (tmp_path / name).write_text(yaml.safe_dump_all(map(_small, documents)))
    (tmp_path / "manifests").symlink_to(ROOT / "manifests")
    with hub.serving(files={"config.json": json.dumps(QWEN3_8B).encode()}) as found:
        of_hub = found.env(tmp_path / "home")
        printed = execute(script(page), tmp_path, limit_s=LIMIT_S, **typed, **of_hub)
    assert [words for words in PRINTED[page.stem] if words not in printed] == []


@pytest.mark.usefixtures("chat")
@pytest.mark.parametrize("recipe", [pipelines.GITHUB, pipelines.GITLAB], ids=lambda recipe: recipe.stem)
def test_a_pipeline_deploys_a_service_and_gets_its_answer(
    installed: ControlPlane, typed: dict[str, str], tmp_path: Path, recipe: Path
) -> None:
    """With the rights of the account that the guide makes. Its plan needs no cluster: tests/docs/test_pipelines.py."""
    program = [*installed.kubectl, f"--namespace={NAMESPACE}"]
    kubectl.run(program, "create", "serviceaccount", recipe.stem)
    account = f"--serviceaccount={NAMESPACE}:{recipe.stem}"
    kubectl.run(program, "create", "rolebinding", recipe.stem, "--clusterrole=edit", account)
    access = account_kubeconfig(installed, tmp_path / "access", recipe.stem, namespace=NAMESPACE)
    kubectl.run(
        [*installed.kubectl, f"--kubeconfig={access}"], "config", "set-context", "--current", f"--namespace={NAMESPACE}"
    )
    may = f"kubectl --kubeconfig={access} auth can-i patch inferenceservices.serving.kvasir.dev"
    execute(f"until {may}; do sleep 0.05; done", tmp_path, limit_s=LIMIT_S, **typed)
    shown = next(files(page) for page in PAGES if page.stem == "gpu-cluster")["chat.yaml"]
    changed = {**_small(shown[0]), "metadata": {"name": "chat", "labels": {"from": recipe.stem}}}
    repository = pipelines.checkout(tmp_path, chat=yaml.safe_dump(changed))
    secrets = {"KUBECONFIG": access.read_text(), "GATEWAY": typed["GATEWAY"], "API_KEY": ""}
    own = {"PATH": typed["PATH"], "GATEWAY": typed["GATEWAY"]} | (
        {} if recipe == pipelines.GITHUB else {"KUBECONFIG": str(access)}
    )
    jobs = pipelines.jobs(recipe)
    assert f"+    from: {recipe.stem}" in pipelines.run(jobs["diff"], repository, secrets, **own)
    printed = pipelines.run(jobs["deploy"], repository, secrets, **own)
    assert "inferenceservice.serving.kvasir.dev/chat serverside-applied" in printed
    assert "inferenceservice.serving.kvasir.dev/chat answers" in printed


def _program(path: Path, line: str) -> None:
    path.write_text(f"#!/usr/bin/env bash\n{line}\n")
    path.chmod(0o755)


def _small(document: dict[str, Any]) -> dict[str, Any]:
    """A service with the model of this cluster, on processors; any other object as it is."""
    if document.get("kind") != names.KIND:
        return document
    sample = _sample()["spec"]
    taken = {field: sample[field] for field in ("resources", "runtime")}
    model = dict(document["spec"]["model"])
    if model["uri"].startswith("hf://"):
        model["uri"] = sample["model"]["uri"]
    own = {field: value for field, value in document["spec"].items() if field != "auth"}
    model = {field: value for field, value in model.items() if field not in ("secretName", "cacheClaim")}
    return {**document, "spec": {**own, **taken, "model": model}}


def _sample() -> dict[str, Any]:
    found: dict[str, Any] = next(item for item in yaml.safe_load_all(SAMPLE.read_text()) if item["kind"] == names.KIND)
    return found
