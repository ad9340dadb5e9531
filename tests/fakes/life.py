"""One service on everything real, by kubectl and by the openai client: what tests do to it, and how streams end."""

import asyncio
import json
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import yaml
from openai import APIError, APITimeoutError, AsyncOpenAI

from kvasir_api import names, state
from kvasir_local import audit, kubectl
from kvasir_local.control_plane import ControlPlane

SAMPLE: Final = Path(__file__).parents[2] / "manifests" / "samples" / "tiny.yaml"
DEADLINE_S: Final = 90.0
HANG_S: Final = 120.0
"""Of a whole answer, which on a busy machine waits for others; the client gives up a silent one after DEADLINE_S."""
STREAMS: Final = 4


class Life:
    """One service in one namespace, by kubectl and by the openai client."""

    def __init__(self, cluster: ControlPlane, namespace: str) -> None:
        self.namespace, self.cluster = namespace, cluster
        self._program = [*cluster.kubectl, f"--namespace={namespace}"]
        sample = next(item for item in yaml.safe_load_all(SAMPLE.read_text()) if item["kind"] == names.KIND)
        self._spec: dict[str, Any] = dict(sample["spec"])
        self._spec["model"] = {**self._spec["model"], "servedName": namespace}

    def kubectl(self, *arguments: str) -> str:
        return kubectl.run(self._program, *arguments)

    def put(self, manifest: dict[str, Any]) -> None:
        """An object of any kind, as it is."""
        kubectl.apply(self._program, yaml.safe_dump(manifest))

    def items(self, kind: str, *arguments: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", kind, "-ojson", *arguments))["items"]
        return found

    def apply(self, *, uri: str = "", **spec: Any) -> None:
        if uri:
            self._spec["model"] = {**self._spec["model"], "uri": uri}
        self._spec = {k: v for k, v in (self._spec | spec).items() if v is not None}
        manifest = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "tiny"}}
        kubectl.apply(self._program, yaml.safe_dump({**manifest, "spec": self._spec}))

    def status(self) -> dict[str, Any]:
        (service,) = self.items("infsvc")
        return service.get("status") or {}

    def condition(self, kind: str) -> dict[str, Any]:
        """A condition of the present generation, empty when there is none."""
        (service,) = self.items("infsvc")
        conditions = (service.get("status") or {}).get("conditions") or ()
        found = [c for c in conditions if c["type"] == kind]
        return found[0] if found and found[0]["observedGeneration"] == service["metadata"]["generation"] else {}

    def pods(self) -> list[dict[str, Any]]:
        """Those that are not on their way out."""
        return [pod for pod in self.items("pods") if not pod["metadata"].get("deletionTimestamp")]

    def uids(self) -> set[str]:
        return {pod["metadata"]["uid"] for pod in self.pods()}

    def volume(self) -> Path:
        """The directory of this machine that the sample's claim has, and pods read models from."""
        (claim,) = self.items("persistentvolumeclaims")
        found = json.loads(self.kubectl("get", "persistentvolume", claim["spec"]["volumeName"], "-ojson"))
        return Path(found["spec"]["hostPath"]["path"])

    def ranks(self) -> list[str]:
        """Of the service's replicas, a line for each as the status has it."""
        found: list[str] = self.status().get("ranks") or []
        return found

    async def until(self, found: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            if answer := await asyncio.to_thread(found):
                return answer
            await asyncio.sleep(0.05)
        shown = self.kubectl("get", "infsvc,pods", "-oyaml")
        raise AssertionError(f"not within {DEADLINE_S:g} s: {what}\n{shown}\n{self._operator_says()}")

    def _operator_says(self) -> str:
        """The end of the operator's log, or why there is none."""
        where = f"--namespace={names.SYSTEM_NAMESPACE}"
        return kubectl.attempt([*self.cluster.kubectl, where], "logs", f"deployment/{names.OPERATOR}", "--tail=40")

    async def until_ready(self) -> None:
        """Also after a change, while Ready stays True: nothing goes on any more."""
        await self.until(lambda: self.condition("Ready").get("reason") == "AllReplicasReady", "AllReplicasReady")

    async def writes(self, seconds: float) -> list[audit.AuditedRequest]:
        """What operator and gateway write in that time, and the node of this service, but for leases and heartbeats.

        What other tests have left goes meanwhile, in namespaces of its own, and they have to write of that.
        """
        log = self.cluster.paths.audit_log
        mark = log.stat().st_size
        for _ in range(round(seconds / 0.05)):
            await asyncio.sleep(0.05)
        found, _ = audit.read(log, since=mark)
        ours = [w for w in audit.writes(found) if "kvasir" in w.user and w.resource not in {"leases", "nodes"}]
        own = {self.namespace, names.SYSTEM_NAMESPACE, ""}
        return [w for w in ours if w.namespace in ({self.namespace} if w.user.startswith("system:node:") else own)]

    def state_of(self, pod: dict[str, Any]) -> state.RuntimeState:
        """What a pod says."""
        url = f"http://{pod['status']['podIP']}:{names.PORT_OPS}{names.PATH_STATE}"
        with urllib.request.urlopen(url, timeout=DEADLINE_S) as response:
            return state.decode(response.read())

    def busiest(self) -> dict[str, Any] | None:
        """Metadata of the pod with most streams, once it has half of them and all pods listen."""
        pods = self.pods()
        if not all(pod["status"].get("podIP") for pod in pods):
            return None  # a new one, of which the condition Ready does not know yet
        try:
            running = [(self.state_of(pod).running, pod["metadata"]) for pod in pods]
        except OSError:
            return None
        count, metadata = max(running, key=lambda found: found[0])
        return metadata if count >= STREAMS / 2 else None


def processes_of(pod: dict[str, Any], module: str) -> list[int]:
    """Processes of this machine that run a module in a pod."""
    address, found = f"{names.ENV_LISTEN_ADDRESS}={pod['status']['podIP']}".encode(), list[int]()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if module.encode() in (process / "cmdline").read_bytes():
                found += [int(process.name)] * (address in (process / "environ").read_bytes().split(b"\0"))
        except OSError:  # it ended
            continue
    return found


async def answer(client: AsyncOpenAI, model: str, max_tokens: int) -> str:
    """How one stream ended: its finish reason, `error`, or `silence` when it just stopped. TimeoutError when it hangs.

    Any exception that is not an answer of the API is raised, and so is a timeout of the client.
    """
    last = "silence"
    try:
        async with asyncio.timeout(HANG_S):
            async for chunk in await client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": "What is Kvasir?"}],
                max_tokens=max_tokens,
                stream=True,
                extra_body={"ignore_eos": True},
            ):
                last = (chunk.choices and chunk.choices[0].finish_reason) or last
    except APITimeoutError:
        raise
    except APIError:
        return "error"
    return last


async def answers(client: AsyncOpenAI, model: str, stop: asyncio.Event, max_tokens: int = 200) -> list[str]:
    """Stream one answer after the other until told to stop; how each one ended."""
    ends = []
    while not stop.is_set():
        ends.append(await answer(client, model, max_tokens))
    return ends
