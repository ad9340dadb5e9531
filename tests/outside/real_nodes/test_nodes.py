"""Nodes that are emptied, vanish and have no room, under a service: two kubelets on one bridge."""

import contextlib
import json
import os
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from httpx import HTTPError
from openai import OpenAIError

from fakes import hub
from kvasir_api import names
from kvasir_local import kubectl
from kvasir_local.demo.scenario import MODEL
from outside.real_nodes.service import StreamLoad, rolled_out

pytestmark = pytest.mark.timeout(900)

FILES = {path.name: path.read_bytes() for path in MODEL.iterdir()}
USER = 65532
IN_A_ROW = 20
STREAMS, TOKENS = 4, 1000
BROKEN_S = 100.0
"""Far below the 300 s of silence that the gateway allows a stream, and above the 30 s after which it knows."""


def node_of(pod):
    return pod["spec"].get("nodeName")


def system_pods(real, name):
    selector = f"--selector=app.kubernetes.io/name={name}"
    words = ("get", "pods", f"--namespace={names.SYSTEM_NAMESPACE}", selector, "--output=json")
    found = json.loads(kubectl.run(real.kubectl, *words))["items"]
    return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]


def spread_out(real, service):
    """One operator and one gateway on each node: the scheduler prefers it, and a node that was emptied has none."""
    program = [*real.kubectl, f"--namespace={names.SYSTEM_NAMESPACE}"]
    for name in ("kvasir-operator", "kvasir-gateway"):
        service.until(lambda name=name: rolled_out(program, name), f"{name} has its pods")
        pods = system_pods(real, name)
        if len({node_of(pod) for pod in pods}) == 1:
            kubectl.run(program, "delete", "pod", pods[0]["metadata"]["name"], "--wait=false")
            service.until(
                lambda name=name: rolled_out(program, name) and len({node_of(p) for p in system_pods(real, name)}) == 2,
                f"{name} is on two nodes",
            )


@contextlib.contextmanager
def cordoned(real, node):
    kubectl.run(real.kubectl, "cordon", node)
    try:
        yield
    finally:
        kubectl.run(real.kubectl, "uncordon", node)


def test_a_node_is_drained_under_streams(real, fresh):
    """Replicas, operator and gateway leave it by evictions, as before an upgrade of the node."""
    fresh.apply(replicas=2)
    fresh.until_ready()
    node = node_of(fresh.pods()[0])
    with StreamLoad(fresh) as load, cordoned(real, node):
        load.until_more()
        words = [*real.kubectl, "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=300s"]
        drained = subprocess.run(words, capture_output=True, text=True, check=False, timeout=330)
        assert drained.returncode == 0, drained.stderr
        fresh.until(lambda: {node_of(pod) for pod in fresh.pods()} == {other(node)}, "both replicas are elsewhere")
        fresh.until_ready()
        load.until_more()
    assert set(load.ends) == {"length"}
    spread_out(real, fresh)


def other(node):
    return {"kvasir-0": "kvasir-1", "kvasir-1": "kvasir-0"}[node]


@contextlib.contextmanager
def unreachable(real, node):
    """The link of a node is down: its pods run on, and no request or probe from outside reaches it."""
    link = real.state.network.kubelets.link(int(node.removeprefix("kvasir-")))
    subprocess.run(["ip", "link", "set", link, "down"], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "link", "set", link, "up"], check=True)


def on_both_nodes(real, service, **spec):
    """A replica, an operator and a gateway on each node; the URL of the gateway that is on kvasir-0."""
    spread_out(real, service)
    with cordoned(real, "kvasir-1"):
        service.apply(replicas=1, **spec)
        service.until_ready()
    with cordoned(real, "kvasir-0"):
        service.apply(replicas=2, **spec)
        service.until_ready()
    assert {node_of(pod) for pod in service.pods()} == {"kvasir-0", "kvasir-1"}
    (gateway,) = [pod for pod in system_pods(real, "kvasir-gateway") if node_of(pod) == "kvasir-0"]
    return f"http://{gateway['status']['podIP']}:{names.PORT_GATEWAY}"


def test_a_node_that_vanishes_is_avoided_and_taken_back(real, fresh):
    url = on_both_nodes(real, fresh)
    before = fresh.uids()

    def served():
        """A row of requests that are answered within seconds each."""
        with fresh.client(url, timeout_s=10) as client, contextlib.suppress(OpenAIError):
            return {fresh.stream(client, 8)[1] for _ in range(IN_A_ROW)} == {"length"}

    assert served()
    with unreachable(real, "kvasir-1"):
        fresh.until(served, "requests go to the replica that is left")
        fresh.until(lambda: fresh.status().get("readyReplicas") == 1, "the status counts the replica that is left")
        assert fresh.conditions()["Ready"]["reason"] != "AllReplicasReady"
        assert served()
    fresh.until_ready()
    assert fresh.uids() == before, "a replica was replaced although its node came back in time"
    assert served()


def test_streams_of_a_node_that_vanishes_go_on_elsewhere_or_break_within_a_minute(real, fresh):
    """The engine is stopped first, so that no answer ends before the link is down. Its node answers until then."""
    url = on_both_nodes(real, fresh, runtime={"kvCacheTokens": 16384})
    (replica,) = [pod["metadata"]["name"] for pod in fresh.pods() if node_of(pod) == "kvasir-1"]
    open_, lost = threading.Barrier(2 * STREAMS + 1), threading.Event()

    def began():
        open_.wait(60)
        lost.wait(60)

    def streamed(number, headers):
        question = f"{number}: what is Kvasir?"  # each with a prefix of its own, so that no replica is preferred
        with fresh.client(url, timeout_s=200) as client:
            try:
                end = fresh.stream(client, TOKENS, question=question, headers=headers, began=began)[1]
            except (OpenAIError, HTTPError) as error:
                end = type(error).__name__
        return end, time.monotonic()

    with ThreadPoolExecutor(2 * STREAMS) as pool, fresh.engine_that_stops(replica) as stop:
        resumed = [pool.submit(streamed, number, {names.HEADER_RESUME: "1"}) for number in range(STREAMS)]
        plain = [pool.submit(streamed, number, None) for number in range(STREAMS, 2 * STREAMS)]
        open_.wait(60)
        stop()
        with unreachable(real, "kvasir-1"):
            started = time.monotonic()
            lost.set()
            assert [one.result()[0] for one in resumed] == ["length"] * STREAMS
            ends = [one.result() for one in plain]
    broken = [at - started for end, at in ends if end != "length"]
    assert broken, "no stream was open at the node that vanished"
    assert max(broken) < BROKEN_S
    fresh.until_ready()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MiB that a replica may write."""
    directory = tmp_path / "small"
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=0770", "kvasir-test", str(directory)], check=True)
    os.chown(directory, USER, USER)
    for parent in directory.parents:  # pytest keeps them to its own user
        if parent.is_relative_to(tmp_path.parents[1]):
            parent.chmod(parent.stat().st_mode | 0o011)
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


def claim(service, directory: Path):
    size = {"storage": "64Mi"}
    volume = f"small-{service.namespace}"
    spec = {
        "accessModes": ["ReadWriteMany"],
        "capacity": size,
        "storageClassName": "",
        "hostPath": {"path": str(directory)},
        "claimRef": {"namespace": service.namespace, "name": "cache"},
        "persistentVolumeReclaimPolicy": "Delete",
    }
    service.put({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume}, "spec": spec})
    wanted = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "volumeName": volume,
        "resources": {"requests": size},
    }
    service.put({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "cache"}, "spec": wanted})
    return volume


def test_a_disk_without_room_for_a_model_is_named_and_served_from_once_there_is(real, fresh, small_disk):
    volume = claim(fresh, small_disk)
    with hub.serving(files=FILES, address=real.state.network.kubelets.address) as found:
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "hub"},
            "stringData": {"endpoint": found.url},
        }
        fresh.put(secret)
        model = {"uri": "hf://org/name", "secretName": "hub", "servedName": fresh.namespace, "cacheClaim": "cache"}
        fresh.apply(model=model)
        stalled = fresh.until(lambda: fresh.conditions().get("Stalled"), "the service is stalled")
        assert stalled["reason"] == "ModelUnavailable", stalled
        assert "MiB of disk in" in stalled["message"]
        assert "MiB are free" in stalled["message"]
        subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
        fresh.until_ready()
        with fresh.client() as client:
            assert fresh.stream(client, 8)[1] == "length"
        fresh.kubectl("delete", "infsvc", "tiny", "--wait=false")
        fresh.until(lambda: not fresh.items("pods"), "no pod has it mounted")
    fresh.kubectl("delete", "pvc", "cache", "--wait=false")
    kubectl.run(real.kubectl, "delete", "pv", volume, "--wait=false")
