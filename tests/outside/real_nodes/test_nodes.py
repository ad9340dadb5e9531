"""Nodes that are emptied, vanish and have no room, under a service: two kubelets on one bridge."""

import contextlib
import os
import signal
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
from outside.real_nodes.nodes import cordoned, node_of, on_both_nodes, operator_with, other, spread_out, unreachable
from outside.real_nodes.service import StreamLoad, restarts

pytestmark = pytest.mark.timeout(900)

FILES = {path.name: path.read_bytes() for path in MODEL.iterdir()}
USER = 65532
IN_A_ROW = 20
STREAMS, TOKENS = 4, 1000
DOWNLOAD_S = 75.0
"""Above the 60 s of silence after which a replica that serves is started again."""
BROKEN_S = 100.0
"""Far below the 300 s of silence that the gateway allows a stream, and above the 30 s after which it knows."""


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


def test_a_node_whose_kubelet_and_containerd_end_serves_on_and_has_them_back(real, fresh):
    """As their upgrade does: both are killed under streams, and a rollout follows."""
    on_both_nodes(real, fresh)
    before = restarts(fresh)
    with StreamLoad(fresh) as load:
        load.until_more()
        for kind in ("node", "containerd"):
            os.kill(real.state.process(f"{kind}/kvasir-1").pid, signal.SIGKILL)
        load.until_more()
        real.start()
        real.await_node("kvasir-1")
        fresh.until(lambda: restarts(fresh) == before, "both replicas are what they were")
        fresh.until_ready()
        load.until_more()
        fresh.apply(replicas=2, runtime={"kvCacheTokens": 4096})
        fresh.until(lambda: len(fresh.pods()) == 2 and not restarts(fresh).keys() & before.keys(), "a rollout is over")
        fresh.until_ready()
        load.until_more()
    assert set(load.ends) == {"length"}


def let_through(directory, tmp_path):
    """Pytest keeps the parents of tmp_path to its own user."""
    for parent in directory.parents:
        if parent.is_relative_to(tmp_path.parents[1]):
            parent.chmod(parent.stat().st_mode | 0o011)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MiB that a replica may write."""
    directory = tmp_path / "small"
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=0770", "kvasir-test", str(directory)], check=True)
    os.chown(directory, USER, USER)
    let_through(directory, tmp_path)
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


def from_hub(service, found):
    """spec.model of the one on a hub that this machine serves."""
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub"}, "stringData": {"endpoint": found.url}}
    service.put(secret)
    return {"uri": "hf://org/name", "secretName": "hub", "servedName": service.namespace}


def test_a_model_that_comes_slowly_is_waited_for_by_the_probes(real, fresh):
    """Longer than a replica that serves may be silent, and than one answer of the probe that a start has of its own."""
    with hub.serving("trickles", FILES, held=True, address=real.state.network.kubelets.address) as found:
        found.at_once = len(FILES[hub.WEIGHTS]) // 2
        fresh.apply(model=from_hub(fresh, found))
        fresh.until(lambda: fresh.conditions().get("Ready", {}).get("reason") == "ModelDownloading", "it downloads")
        began = time.monotonic()
        fresh.until(lambda: time.monotonic() - began > DOWNLOAD_S, "a while")
        assert "%" in fresh.conditions()["Ready"]["message"]
        assert fresh.conditions()["Ready"]["reason"] == "ModelDownloading"
        found.open.set()
        fresh.until_ready()
    assert fresh.container()["restartCount"] == 0


def test_a_disk_without_room_for_a_model_is_named_and_served_from_once_there_is(real, fresh, small_disk):
    volume = claim(fresh, small_disk)
    with hub.serving(files=FILES, address=real.state.network.kubelets.address) as found:
        model = {**from_hub(fresh, found), "cacheClaim": "cache"}
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


@pytest.fixture
def node_cache(real, fresh, tmp_path):
    """The directory of a namespace in the cache of its nodes, which are one machine."""
    mine = tmp_path / "cache" / fresh.namespace
    for directory in (mine / ".start", mine):
        directory.mkdir(parents=True, exist_ok=True)
        os.chown(directory, USER, USER)
    let_through(mine, tmp_path)
    exempt = "pod-security.kubernetes.io/enforce=privileged"  # from the standard, which has no hostPath
    kubectl.run(real.kubectl, "label", "--overwrite", "namespace", fresh.namespace, exempt)
    with operator_with(real, fresh, f"--model-cache-dir={tmp_path / 'cache'}", "--model-cache-bytes=1000000000"):
        yield mine
        fresh.kubectl("delete", "infsvc", "tiny", "--wait=false")
        fresh.until(lambda: not fresh.items("pods"), "no pod has it mounted")


def test_a_replica_that_comes_to_a_node_again_finds_model_and_start_there(real, fresh, node_cache):
    """One pod fetches, replicas read, and what starts have measured is all that they write."""
    with hub.serving(files=FILES, address=real.state.network.kubelets.address) as found:
        fresh.apply(model=from_hub(fresh, found))
        fresh.until_ready()
        fetched = [path for path in found.of("GET") if path.endswith(hub.WEIGHTS)]
        assert len(fetched) == 1
        assert list((node_cache / ".start").iterdir()), "no start has left what it measured"
        (first,) = fresh.uids()
        fresh.kubectl("delete", "pod", fresh.pod(), "--wait=false")
        fresh.until(lambda: fresh.uids() and first not in fresh.uids(), "another replica is there")
        fresh.until_ready()
        assert [path for path in found.of("GET") if path.endswith(hub.WEIGHTS)] == fetched
    assert "Read-only file system" in fresh.exec("touch", f"{names.MODEL_MOUNT}/x").stderr
