"""The recipes of docs/guides/ci: their plan on a hub, and what their script makes of each state of a service.

The other steps run on a real cluster, in tests/e2e/test_guides.py.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from fakes import hub, pipelines
from fakes.guides import OWN, PAGES, files
from fakes.models import QWEN3_8B

PIPELINES = [pipelines.GITHUB, pipelines.GITLAB]
SHOWN = next(files(page) for page in PAGES if page.stem == "gpu-cluster")["chat.yaml"]
CHAT = yaml.safe_dump_all(SHOWN)
SERVICE = "inferenceservice.serving.kvasir.dev/chat"


@pytest.mark.parametrize("recipe", PIPELINES, ids=lambda path: path.stem)
def test_a_recipe_has_the_jobs_that_are_run_here(recipe: Path) -> None:
    assert list(pipelines.jobs(recipe)) == ["plan", "diff", "deploy"]
    steps = [step.script for job in pipelines.jobs(recipe).values() for step in job]
    typed = [word for script in steps for word in script.split("\n") if word.startswith("ci/deploy.sh")]
    assert typed == [f"ci/deploy.sh {step}" for step in ("plan", "diff", "apply", "wait", "smoke")]


def test_a_recipe_has_only_keys_that_its_provider_knows() -> None:
    """A job with another one is refused as a whole by GitLab, and so is a workflow by GitHub."""
    workflow = yaml.safe_load(pipelines.GITHUB.read_text())
    assert {*workflow} == {"name", True, "permissions", "jobs"}  # YAML 1.1 reads `on` as true
    steps = []
    for job in workflow["jobs"].values():
        assert {*job} <= {
            "runs-on",
            "container",
            "environment",
            "if",
            "needs",
            "concurrency",
            "timeout-minutes",
            "steps",
        }
        steps += job["steps"]
    assert all({*step} in ({"uses"}, {"name", "run"}, {"name", "env", "run"}) for step in steps)
    pipeline = yaml.safe_load(pipelines.GITLAB.read_text())
    for name in pipelines.jobs(pipelines.GITLAB):
        known = {"stage", "image", "variables", "script", "environment", "rules", "resource_group", "timeout"}
        assert {*pipeline[name]} <= known
        assert pipeline[name]["stage"] in pipeline["stages"]


def test_a_plan_is_part_of_each_pipeline_that_runs() -> None:
    """Else GitLab leaves it out of those of merge requests, and nothing that it finds blocks one."""
    pipeline = yaml.safe_load(pipelines.GITLAB.read_text())
    runs = {rule["if"] for rule in pipeline["workflow"]["rules"]}
    assert {rule["if"] for rule in pipeline["plan"]["rules"]} == runs
    assert runs == {rule["if"] for job in ("diff", "deploy") for rule in pipeline[job]["rules"]}


@pytest.mark.parametrize("recipe", PIPELINES, ids=lambda path: path.stem)
def test_a_model_is_judged_by_its_config_alone(tmp_path: Path, recipe: Path) -> None:
    repository = pipelines.checkout(tmp_path, chat=CHAT, claim=CHAT.replace("hf://Qwen/Qwen3-8B", "pvc://claim/model"))
    with hub.serving(files={"config.json": json.dumps(QWEN3_8B).encode()}) as found:
        printed = pipelines.run(pipelines.jobs(recipe)["plan"], repository, {}, **found.env(tmp_path / "home"))
    assert "it fits" in printed
    assert "models/claim.yaml: nothing to read here" in printed
    assert not [path for path in found.of("GET") if path.endswith("safetensors")]


def test_a_model_that_does_not_fit_fails_the_plan(tmp_path: Path) -> None:
    repository = pipelines.checkout(tmp_path, chat=CHAT)
    small = [step._replace(variables={"MEMORY": "8Gi"}) for step in pipelines.jobs(pipelines.GITLAB)["plan"]]
    with hub.serving(files={"config.json": json.dumps(QWEN3_8B).encode()}) as found:
        variables = found.env(tmp_path / "home")
        with pytest.raises(AssertionError, match="verdict      too small: the process"):
            pipelines.run(small, repository, {}, **variables)


FLOW = "{kind: InferenceService, spec: {model: {uri: hf://org/name}}} # flow style"
WAYS_TO_WRITE = {
    "a/flow.yaml": FLOW,
    "b.yml": "kind: InferenceService\nspec:\n  model:\n    uri: 'hf://org/name'  # by the team",
    "c.json": '{"kind": "List", "items": [{"kind": "InferenceService", "spec": {"model": {"uri": "hf://org/name"}}}]}',
    "d.yaml": f"kind: ConfigMap\n---\n{FLOW}\n---\n{FLOW}",
}


@pytest.mark.parametrize("name", WAYS_TO_WRITE)
def test_every_service_is_planned_however_its_manifest_is_written(tmp_path: Path, name: str) -> None:
    done = planned(tmp_path, {name: WAYS_TO_WRITE[name]})
    assert done.returncode == 0, done.stderr
    asked = ["plan hf://org/name --device cuda --memory 22Gi"]
    assert done.stdout.splitlines() == asked * (2 if name == "d.yaml" else 1)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"a.yaml": "kind: InferenceService\nspec:\n  model: {}\n"}, "models/a.yaml: no spec.model.uri can be read"),
        ({"a.yaml": "kind: InferenceService\nspec: {"}, "models/a.yaml: no spec.model.uri can be read"),
        ({"README.md": "# Models"}, "no manifests below models"),
    ],
    ids=["without uri", "not YAML", "no manifests"],
)
def test_a_model_that_is_not_read_fails_the_plan(tmp_path: Path, files: dict[str, str], said: str) -> None:
    done = planned(tmp_path, files)
    assert done.returncode != 0
    assert said in done.stderr


def test_a_manifest_without_a_service_is_named(tmp_path: Path) -> None:
    assert planned(tmp_path, {"a.yml": "kind: ConfigMap"}).stdout == "models/a.yml: nothing to read here\n"


NO_TEXT = (400, '{"error": {"code": "unsupported_model"}}')


@pytest.mark.skipif(shutil.which("curl") is None, reason="the script asks by curl")
@pytest.mark.parametrize(
    ("answers", "code", "said"),
    [
        ({"/v1/chat/completions": (200, "{}")}, 0, f"{SERVICE} answers at /v1/chat/completions"),
        (
            {"/v1/chat/completions": NO_TEXT, "/v1/embeddings": (200, "{}")},
            0,
            f"{SERVICE} answers at /v1/embeddings",
        ),
        (
            {"/v1/chat/completions": NO_TEXT, "/v1/embeddings": NO_TEXT, "/v1/score": (200, "{}")},
            0,
            f"{SERVICE} answers at /v1/score",
        ),
        ({"/v1/chat/completions": (503, "no replica is ready")}, 1, "no replica is ready"),
        (dict.fromkeys(("/v1/chat/completions", "/v1/embeddings", "/v1/score"), NO_TEXT), 1, NO_TEXT[1]),
    ],
    ids=["text", "vectors", "scores", "an error", "nothing"],
)
def test_a_service_is_asked_for_what_its_model_can_do(
    tmp_path: Path, answers: dict[str, tuple[int, str]], code: int, said: str
) -> None:
    with gateway(answers) as (url, asked):
        done = deploy(tmp_path, "smoke", ["org/chat"], GATEWAY=url, API_KEY="key-1")
    assert done.returncode == code, done.stderr
    assert said in (done.stderr if code else done.stdout)
    assert {(body["model"], key) for body, key in asked} == {("org/chat", "Bearer key-1")}


@contextmanager
def gateway(answers: dict[str, tuple[int, str]]) -> Iterator[tuple[str, list[tuple[Any, str | None]]]]:
    """A server on loopback with one answer for each path; its url, and the bodies and keys that it got."""
    asked: list[tuple[Any, str | None]] = []

    class Gateway(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            asked.append((body, self.headers["authorization"]))
            status, text = answers[self.path]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Gateway) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def planned(tmp_path: Path, files: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The plan of these files below models/, by a kvasir that prints its arguments."""
    repository = pipelines.checkout(tmp_path)
    for name, text in files.items():
        (repository / "models" / name).parent.mkdir(exist_ok=True)
        (repository / "models" / name).write_text(text)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/kvasir").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "bin/kvasir").chmod(0o755)
    return subprocess.run(
        ["ci/deploy.sh", "plan"],
        cwd=repository,
        env={"PATH": f"{tmp_path / 'bin'}:{OWN}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("looks", "code", "said"),
    [
        (["2|2|||True|1 replica ready"], 0, "1 replica ready"),
        (["2|1|||True|of the spec before", "2|2||True|True|0 of 1 ready", "2|2|||True|done"], 0, "done"),
        (["1|||||", "1|1|True||False|spec.model.uri: no such | model"], 1, "spec.model.uri: no such | model"),
        (["2|2|True||True|revision a was rolled back to b"], 1, "rolled back"),
        (["1|1||True|False|loads"], 1, "not within 0 s"),
    ],
    ids=["ready", "a rollout", "stalled", "rolled back", "too late"],
)
def test_a_service_is_waited_for_until_it_serves_its_spec(
    tmp_path: Path, looks: list[str], code: int, said: str
) -> None:
    done = deploy(tmp_path, "wait", looks, TIMEOUT_S="0" if "not within" in said else "60")
    assert done.returncode == code, done.stderr
    assert said in done.stdout + done.stderr
    assert (tmp_path / "looks").read_text() == "", "all were needed"


def test_a_folder_without_services_is_no_success(tmp_path: Path) -> None:
    assert deploy(tmp_path, "wait", [], service="configmap/other").returncode == 1


def test_other_words_are_answered_with_the_help(tmp_path: Path) -> None:
    done = deploy(tmp_path, "dipl", [])
    assert done.returncode == 2
    assert "deploy.sh plan | diff | apply | wait | smoke" in done.stderr


def deploy(
    tmp_path: Path, step: str, looks: list[str], *, service: str = SERVICE, **variables: str
) -> subprocess.CompletedProcess[str]:
    """The script before a kubectl that answers each look at the status with the next of these lines."""
    repository = pipelines.checkout(tmp_path, chat=CHAT)
    (tmp_path / "looks").write_text("".join(f"{line}\n" for line in looks))
    answers = f'case "$*" in *"output name") echo {service} ;; *) head -n 1 looks; sed -i 1d looks ;; esac\n'
    (tmp_path / "kubectl").write_text(f"#!/usr/bin/env bash\n{answers}")
    (tmp_path / "kubectl").chmod(0o755)
    return subprocess.run(
        ["ci/deploy.sh", step],
        cwd=repository,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
