"""The real operator, as a process under its own service account, on a real control plane whose pods are stubs."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import yaml

from fakes.fault_proxy import FaultProxy
from fakes.flux import breaches
from fakes.kubelet import FakeKubelet, StubPod
from kvasir_api import names
from kvasir_kube.client import Client, configuration
from kvasir_kube.errors import KubeError
from kvasir_kube.kinds import (
    CLAIM,
    DEPLOYMENT,
    EVENT,
    INFERENCE_SERVICE,
    NAMESPACE,
    POD,
    Json,
    Kind,
)
from kvasir_local import audit
from kvasir_local.control_plane import ControlPlane

ROOT: Final = Path(__file__).resolve().parents[2]
USER: Final = f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:{names.OPERATOR}"
DEADLINE_S: Final = 60.0
"""Long, since a machine that is busy with other things is no fault of the operator."""
LOOKS_PER_S: Final = 4
"""An API server with a processor to itself answers some ten looks a second, one that is starved less than one."""
VOLUME: Final = Kind(kind="PersistentVolume", plural="persistentvolumes", namespaced=False)


def install(control: ControlPlane) -> None:
    """CRDs, namespace and the operator's account, rights and Secrets, without its Deployment."""
    plurals = (names.PLURAL, names.ROUTE_PLURAL, names.ACCELERATOR_PLURAL, names.TENANT_PLURAL)
    for plural in plurals:
        kubectl(control, "apply", "--server-side", "-f", str(ROOT / "crds" / f"{plural}.yaml"))
    kubectl(control, "apply", "--server-side", "-f", str(ROOT / "manifests/base/namespace.yaml"))
    for name in ("operator/serviceaccount", "operator/rbac", "operator/secret", "gateway/secret"):
        kubectl(control, "apply", "--server-side", "-f", str(ROOT / f"manifests/base/{name}.yaml"))
    crds = [f"crd/{plural}.{names.GROUP}" for plural in plurals]
    kubectl(control, "wait", "--for=condition=Established", *crds, "--timeout=60s")


def kubectl(control: ControlPlane, *arguments: str, check: bool = True, text: str | None = None) -> str:
    """Output of a kubectl command, stderr included."""
    done = subprocess.run(
        [*control.kubectl, *arguments], capture_output=True, text=True, check=False, timeout=90, input=text
    )
    assert not check or done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def account_kubeconfig(
    control: ControlPlane, path: Path, account: str = names.OPERATOR, *, namespace: str = names.SYSTEM_NAMESPACE
) -> Path:
    """A kubeconfig with the rights of a service account."""
    config = yaml.safe_load(control.kubeconfig.read_text())
    token = kubectl(control, "create", "token", account, f"--namespace={namespace}").strip()
    for user in config["users"]:
        user["user"] = {"token": token}
    path.write_text(yaml.safe_dump(config))
    path.chmod(0o600)
    return path


class Rig:
    """One test's operator, namespace and node."""

    def __init__(self, control: ControlPlane, client: Client, kubelet: FakeKubelet, *, namespace: str, tmp: Path):
        self.control, self.client, self.kubelet, self.namespace = control, client, kubelet, namespace
        self.log = tmp / "operator.log"
        self._config = account_kubeconfig(control, tmp / "operator.kubeconfig")
        self._process: subprocess.Popen[bytes] | None = None

    def account(self, namespace: str) -> None:
        """From its next start on the operator has the rights of its account in another namespace."""
        account_kubeconfig(self.control, self._config, namespace=namespace)

    def through(self, url: str) -> None:
        """From its next start on the operator reaches the API server by this URL, without TLS."""
        config = yaml.safe_load(self._config.read_text())
        for cluster in config["clusters"]:
            cluster["cluster"] = {"server": url}
        self._config.write_text(yaml.safe_dump(config))

    def start(self, *flags: str) -> None:
        """The operator for this namespace only, since other tests share the cluster."""
        command = [
            str(Path(sys.executable).with_name("kvasir")), "operator", "--kubeconfig", str(self._config),
            "--namespace", self.namespace, "--interval", "0.3", "--health-port", "0", "--metrics-port", "0",
            "--gateway-url", "http://gateway.example", *flags,
        ]  # fmt: skip
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stderr=log, stdout=log)

    def stop(self, sign: signal.Signals = signal.SIGTERM) -> int:
        """End the operator; its exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(sign)
        try:
            return process.wait(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    def signal(self, sign: signal.Signals) -> None:
        """Stop or continue the operator as the kernel would."""
        assert self._process is not None
        self._process.send_signal(sign)

    def kill(self, *flags: str) -> None:
        """End the operator without a word and start another one."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self.start(*flags)

    @property
    def pid(self) -> int:
        """Of the operator's process."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the operator has not ended by itself."""
        return self._process is not None and self._process.poll() is None

    @contextlib.asynccontextmanager
    async def second_node(self) -> AsyncGenerator[FakeKubelet]:
        """One more node of stubs, while the context is open."""
        node = f"{self.namespace}-b"
        async with FakeKubelet(self.client, node=node) as kubelet:
            try:
                yield kubelet
            finally:  # pods of later tests would be placed on a node that is left
                kubectl(self.control, "delete", "node", node, "--wait=false")

    async def claim(self, name: str = "models") -> None:
        """A claim and a volume for it; the stub pods mount nothing, but the scheduler wants it bound."""
        size = {"storage": "1Mi"}
        volume = f"{self.namespace}-{name}"
        common: Json = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
        held = {**common, "capacity": size, "hostPath": {"path": "/nowhere"}, "claimRef": self._where(name)}
        await self.client.apply(VOLUME, {"metadata": {"name": volume}, "spec": held}, manager="test")
        spec = {**common, "resources": {"requests": size}, "volumeName": volume}
        await self.client.apply(CLAIM, {"metadata": self._where(name), "spec": spec}, manager="test")

    async def apply(self, name: str = "tiny", **spec: Any) -> Json:
        """An InferenceService of this spec, applied as a user would."""
        given = {"model": {"uri": f"file:///srv/{name}"}, **spec}
        return await self.client.apply(
            INFERENCE_SERVICE, {"metadata": self._where(name), "spec": given}, manager="test"
        )

    async def delete(self, name: str = "tiny") -> None:
        await self.client.delete(INFERENCE_SERVICE, self.namespace, name)

    async def service(self, name: str = "tiny") -> Json:
        return await self.client.get(INFERENCE_SERVICE, self.namespace, name)

    async def status(self, name: str = "tiny") -> Json:
        """The status, empty while it is older than the spec."""
        found = await self.service(name)
        assert breaches(found) == []
        status: Json = found.get("status") or {}
        return status if status.get("observedGeneration") == found["metadata"]["generation"] else {}

    async def all(self, kind: Kind) -> list[Json]:
        return list((await self.client.list(kind, self.namespace)).items)

    async def deployments(self) -> dict[str, int]:
        """Replicas asked of each revision's workload."""
        found = await self.all(DEPLOYMENT)
        return {d["metadata"]["labels"][names.LABEL_REVISION]: d["spec"]["replicas"] for d in found}

    async def pod_uids(self) -> set[str]:
        return {p["metadata"]["uid"] for p in await self.all(POD) if not p["metadata"].get("deletionTimestamp")}

    async def events(self, reason: str) -> list[str]:
        """Notes of the events of one reason."""
        found = sorted(await self.all(EVENT), key=lambda e: str(e.get("eventTime")))
        return [
            e["note"]
            for e in found
            if e["reason"] == reason and e.get("reportingController", "").startswith(names.GROUP)
        ]

    async def noted(self, reason: str) -> list[str]:
        """Notes of the events of one reason, once there is one: the operator writes them behind the status."""

        async def look() -> list[str] | None:
            return await self.events(reason) or None

        found: list[str] = await self.until(look, lambda: f"an event {reason}")
        return found

    async def until_condition(self, kind: str, status: str = "True", name: str = "tiny", **wanted: str) -> Json:
        """Wait for a condition with that status, and with that reason if one is named.

        Ready without a reason: when nothing goes on any more, since it is True during a rollout too.
        """

        async def look() -> Json | None:
            found = await self.status(name)
            conditions: list[Json] = found.get("conditions") or []
            settled = not {c["type"] for c in conditions} & {"Reconciling", "Stalled"}
            for condition in conditions:
                matches = all(condition[field] == value for field, value in wanted.items())
                ends = settled or bool(wanted) or (kind, status) != ("Ready", "True")
                if condition["type"] == kind and condition["status"] == status and matches and ends:
                    return dict(condition)
            return None

        condition: Json = await self.until(look, lambda: f"{kind}={status} {wanted}: {self.dump(name)}")
        return condition

    async def until_pods(self, count: int, *, revision: str = "") -> list[StubPod]:
        """Wait for exactly so many pods that run and do not leave."""

        async def look() -> list[StubPod] | None:
            found = self.kubelet.of(revision)
            return found if len(found) == count else None

        pods: list[StubPod] = await self.until(
            look, lambda: f"{count} pods, have {[p.name for p in self.kubelet.of()]}"
        )
        return pods

    async def heard(self) -> None:
        """Wait until the operator has read every pod twice more, so that it knows what the test made them say."""
        asked = {pod.name: pod.state_reads for pod in self.kubelet.of()}

        async def look() -> bool:
            return all(pod.state_reads >= asked.get(pod.name, 0) + 2 for pod in self.kubelet.of())

        await self.until(look, lambda: "two readings of each pod")

    async def until(self, look: Callable[[], Awaitable[Any]], what: Callable[[], str], *, s: float = DEADLINE_S) -> Any:
        """Poll until look() gives something; what() tells what was waited for.

        It gives up after s seconds in which the API server answered often enough: one that is kept from its work by
        other programs keeps the operator from it too.
        """
        deadline, looks = time.monotonic() + s, 0
        while True:
            try:
                found = await look()
                looks += 1
            except KubeError as error:
                if 0 < error.status < 500 and error.status != 404:
                    raise
                found, looks = None, looks + (error.status == 404)
            if found is not None and found is not False and found != {} and found != ():
                return found
            late = time.monotonic() >= deadline and looks >= s * LOOKS_PER_S
            assert not late, f"not within {s} s: {what()}\n{self.tail()}"
            await asyncio.sleep(0.05)

    def dump(self, name: str) -> str:
        said = kubectl(self.control, "get", "infsvc", name, f"--namespace={self.namespace}", "-ojson", check=False)
        try:
            return json.dumps(json.loads(said).get("status"), indent=1)
        except ValueError:
            return said

    def tail(self) -> str:
        """The last lines of the operator's log."""
        return "\n".join(self.log.read_text().splitlines()[-30:]) if self.log.exists() else ""

    def audit_mark(self) -> int:
        return self.control.paths.audit_log.stat().st_size

    def writes_since(self, mark: int) -> list[audit.AuditedRequest]:
        """What the operator wrote in this namespace, or tried to write, since a mark."""
        found, _ = audit.read(self.control.paths.audit_log, since=mark)
        return [w for w in audit.writes(found) if w.user == USER and w.namespace == self.namespace]

    def _where(self, name: str) -> Json:
        return {"namespace": self.namespace, "name": name}


@contextlib.asynccontextmanager
async def standing(control: ControlPlane, tmp: Path) -> AsyncGenerator[Rig]:
    """A fresh namespace with a node of stubs and an operator that is not started yet."""
    namespace = f"op-{uuid.uuid4().hex[:8]}"
    async with Client(await configuration(str(control.kubeconfig))) as client:
        await make_namespace(client, namespace)
        async with FakeKubelet(client, node=namespace) as kubelet:
            found = Rig(control, client, kubelet, namespace=namespace, tmp=tmp)
            yield found
            found.stop()
            # At once: the namespace goes later, and until then others would find their names taken.
            services = await client.list(INFERENCE_SERVICE, namespace)
            for service in services.items:
                await client.delete(INFERENCE_SERVICE, namespace, service["metadata"]["name"])
            kubectl(control, "delete", "node", namespace, "--wait=false", "--ignore-not-found")
            kubectl(control, "delete", "namespace", namespace, "--wait=false", "--ignore-not-found")


@contextlib.asynccontextmanager
async def proxied(rig: Rig, *flags: str, replicas: int) -> AsyncGenerator[FaultProxy]:
    """A proxy before the API server, behind it the rig's operator with these flags and one service that is ready."""
    async with FaultProxy(rig.control.kubeconfig, lambda: None) as proxy:
        rig.through(proxy.url)
        rig.start(*flags)
        await rig.apply(replicas=replicas)
        await rig.until_condition("Ready", reason="AllReplicasReady")
        yield proxy
        rig.stop()


async def make_namespace(client: Client, name: str) -> None:
    await client.apply(NAMESPACE, {"metadata": {"name": name}}, manager="test")
