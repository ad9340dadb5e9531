"""One service on real nodes, by kubectl and by the openai client."""

import asyncio
import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Self

import yaml
from openai import OpenAI, OpenAIError

from kvasir_api import names
from kvasir_kube.client import Client, configuration
from kvasir_local import kubectl, stack
from kvasir_local.control_plane import ControlPlane
from kvasir_local.demo.scenario import put_model

SAMPLE: Final = Path(__file__).parents[3] / "manifests" / "samples" / "tiny.yaml"
DEADLINE_S: Final = 240.0
POLL_S: Final = 0.05
QUESTION: Final = "What is Kvasir?"
STOP_ENGINE: Final = """\
import os, pathlib, signal
words = {int(p.name): (p / "cmdline").read_bytes() for p in pathlib.Path("/proc").glob("[0-9]*")}
engines = [pid for pid, cmdline in words.items() if b"engine_main" in cmdline and pid != os.getpid()]
print("ready", len(engines), flush=True)
input()
for engine in engines:
    os.kill(engine, signal.SIGSTOP)
print("stopped", flush=True)
"""


@contextlib.contextmanager
def forwarded(program: list[str], target: str, port: int) -> Iterator[str]:
    """The URL of a pod's port on this machine, by `kubectl port-forward`."""
    command = [*program, "port-forward", target, f":{port}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as forwarding:
        assert forwarding.stdout is not None
        said = forwarding.stdout.readline()  # Forwarding from 127.0.0.1:40000 -> 8000
        try:
            assert said.startswith("Forwarding from "), said
            yield f"http://{said.split()[2]}"
        finally:
            forwarding.terminate()


def rolled_out(program: list[str], name: str) -> bool:
    """Whether a Deployment has as many pods as it should, all of its newest template and available."""
    found = json.loads(kubectl.run(program, "get", "deploy", name, "--output=json"))
    status, wanted = found.get("status") or {}, found["spec"]["replicas"]
    counts = {status.get(key) for key in ("updatedReplicas", "availableReplicas", "replicas")}
    return status.get("observedGeneration") == found["metadata"]["generation"] and counts == {wanted}


class RealService:
    """A service `tiny` in a namespace of its own, in which the restricted Pod Security Standard is enforced."""

    def __init__(self, cluster: ControlPlane, namespace: str) -> None:
        self.namespace, self.cluster = namespace, cluster
        self.program = [*cluster.kubectl, f"--namespace={namespace}"]
        self._spec: dict[str, Any] = next(
            item for item in yaml.safe_load_all(SAMPLE.read_text()) if item["kind"] == names.KIND
        )["spec"]
        self._spec["model"]["servedName"] = namespace
        del self._spec["autoscaling"]
        # A node of two cores has room for both operators, both gateways and three replicas.
        self._spec["resources"]["cpu"] = "200m"
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        self.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}})

    def kubectl(self, *arguments: str) -> str:
        return kubectl.run(self.program, *arguments)

    def put(self, manifest: dict[str, Any]) -> None:
        """An object of any kind, as it is."""
        kubectl.apply(self.program, json.dumps(manifest))

    def put_model(self) -> None:
        """The demo's model in a claim."""

        async def put() -> None:
            async with Client(await configuration(str(self.cluster.kubeconfig))) as client:
                await put_model(client, SAMPLE, namespace=self.namespace, deadline_s=DEADLINE_S)

        asyncio.run(put())

    def apply(self, **spec: Any) -> None:
        """The sample's service with other fields; fields of `runtime`, `resources` and the like as a whole."""
        manifest = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "tiny"}}
        self.put({**manifest, "spec": {**self._spec, **spec}})

    def delete(self) -> None:
        kubectl.run(self.cluster.kubectl, "delete", "namespace", self.namespace, "--wait=false")

    def items(self, kind: str, *arguments: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", kind, "--output=json", *arguments))["items"]
        return found

    def pods(self) -> list[dict[str, Any]]:
        """Those that are not on their way out."""
        return [pod for pod in self.items("pods") if not pod["metadata"].get("deletionTimestamp")]

    def uids(self) -> set[str]:
        """Of the pods that are not on their way out."""
        return {str(pod["metadata"]["uid"]) for pod in self.pods()}

    def pod(self) -> str:
        """The name of the one replica."""
        (found,) = self.pods()
        return str(found["metadata"]["name"])

    def container(self) -> dict[str, Any]:
        """The status of the one replica's runtime."""
        (found,) = self.pods()
        statuses = (found.get("status") or {}).get("containerStatuses") or [{}]
        return dict(statuses[0])

    def status(self) -> dict[str, Any]:
        """The service's status; empty when it is of an earlier generation."""
        (service,) = self.items("infsvc")
        found: dict[str, Any] = service.get("status") or {}
        return found if found.get("observedGeneration") == service["metadata"]["generation"] else {}

    def conditions(self) -> dict[str, dict[str, Any]]:
        """Conditions of the present generation, by type."""
        found = self.status()
        generation = found.get("observedGeneration")
        return {c["type"]: c for c in found.get("conditions") or () if c["observedGeneration"] == generation}

    def exec(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A command in the one replica's container."""
        words = [*self.program, "exec", self.pod(), "--", *command]
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)

    def python(self, text: str) -> subprocess.CompletedProcess[str]:
        """A Python program in the one replica's container."""
        return self.exec("/opt/kvasir/bin/python", "-c", text)

    @contextlib.contextmanager
    def engine_that_stops(self, pod: str) -> Iterator[Callable[[], None]]:
        """A function that stops a replica's engine at once, and not its end; the API process of the pod runs on."""
        words = [*self.program, "exec", "--stdin", pod, "--", "/opt/kvasir/bin/python", "-c", STOP_ENGINE]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as stopping:
            assert stopping.stdout is not None
            assert stopping.stdout.readline() == "ready 1\n"

            def stop() -> None:
                assert stopping.communicate("\n", timeout=60)[0] == "stopped\n"

            try:
                yield stop
            finally:
                stopping.kill()

    def until(self, found: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            if answer := found():
                return answer
            time.sleep(POLL_S)
        seen = kubectl.attempt(self.program, "describe", "infsvc,pods")
        raise AssertionError(f"not within {DEADLINE_S:g} s: {what}\n{seen}")

    def until_ready(self) -> None:
        self.until(lambda: self.conditions().get("Ready", {}).get("reason") == "AllReplicasReady", "AllReplicasReady")

    def client(self, gateway: str = "", timeout_s: float = 120) -> OpenAI:
        """gateway: the URL of one; empty for the Service's ClusterIP. A silence of timeout_s breaks a stream."""
        base = gateway or stack.gateway_url(self.cluster)
        return OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0, timeout=timeout_s)

    def stream(
        self,
        client: OpenAI,
        max_tokens: int = 40,
        *,
        question: str = QUESTION,
        headers: dict[str, str] | None = None,
        began: Callable[[], Any] = lambda: None,
    ) -> tuple[str, str]:
        """The text of one streamed answer and its finish reason; `silence` when it just stopped.

        began: called at the first piece of text, and the next one is read when it returns.
        """
        text, end = "", "silence"
        for chunk in client.chat.completions.create(
            model=self.namespace,
            messages=[{"role": "user", "content": question}],
            max_tokens=max_tokens,
            temperature=0,
            stream=True,
            extra_headers=headers,
            extra_body={"ignore_eos": True},
        ):
            if chunk.choices:
                first = not text
                text += chunk.choices[0].delta.content or ""
                end = chunk.choices[0].finish_reason or end
                if first and text:
                    began()
        return text, end


def restarts(service: "RealService") -> dict[str, list[int]]:
    """How often the containers of each replica were started again, by the uid of its pod."""
    return {
        pod["metadata"]["uid"]: [status["restartCount"] for status in pod["status"].get("containerStatuses") or ()]
        for pod in service.pods()
    }


class StreamLoad:
    """Streams that follow one another on several connections while the block is open.

    ends: the finish reason of each stream, or the error that it broke with.
    """

    def __init__(self, service: RealService, *, connections: int = 4, max_tokens: int = 200) -> None:
        self._service, self._max_tokens = service, max_tokens
        self._over, self._lock = threading.Event(), threading.Lock()
        self._threads = [threading.Thread(target=self._run) for _ in range(connections)]
        self.ends: list[str] = []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)

    def until_more(self) -> None:
        """Until as many streams as there are connections have ended from now on."""
        wanted = len(self.ends) + len(self._threads)
        self._service.until(lambda: len(self.ends) >= wanted, f"{wanted} streams have ended")

    def _run(self) -> None:
        with self._service.client() as client:
            while not self._over.is_set():
                try:
                    end = self._service.stream(client, self._max_tokens)[1]
                except OpenAIError as error:
                    end = f"{type(error).__name__}: {error}"
                with self._lock:
                    self.ends.append(end)
