"""The node process dies, by the book or by SIGKILL: nothing of its pods survives, and the next one starts them once."""

import signal
import uuid

import pytest

from fakes.node_bench import NodeBench, pod, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_restarted_node_starts_its_pods_once_and_forgets_deleted_ones(bench: NodeBench, number: signal.Signals):
    stay, leave = f"stay-{uuid.uuid4().hex}", f"leave-{uuid.uuid4().hex}"
    for mark in (stay, leave):
        bench.apply(pod(bench, mark[:5].rstrip("-"), f": {mark}; (setsid sleep 1000 &); while :; do sleep 0.1; done"))
    until(lambda: bench.phase("stay") == "Running" and bench.phase("leave") == "Running")
    ip = bench.pod("stay")["status"]["podIP"]
    uid = bench.pod("leave")["metadata"]["uid"]
    bench.stop(number)
    until(lambda: not bench.processes(stay) and not bench.processes(leave), "the end of every process")
    bench.kubectl("delete", "pod", "leave", "--grace-period=0", "--force")
    bench.start()
    until(lambda: bench.container("stay").get("restartCount") == 1 and bench.phase("stay") == "Running")
    assert bench.pod("stay")["status"]["podIP"] == ip
    last = bench.container("stay")["lastState"]["terminated"]
    assert (last["exitCode"], last["reason"]) == (137, "ContainerStatusUnknown")
    until(lambda: len(bench.processes(stay)) == 1, "exactly one process")
    assert bench.processes(leave) == []
    assert not (bench.state_dir / "pods" / uid).exists()


def test_a_deleted_pod_leaves_while_the_node_was_down(bench: NodeBench):
    bench.apply(pod(bench, "p", "while :; do sleep 0.1; done"))
    until(lambda: bench.phase("p") == "Running")
    bench.stop()
    bench.kubectl("delete", "pod", "p", "--wait=false")
    assert bench.pod("p")["metadata"]["deletionTimestamp"]
    bench.start()
    until(lambda: not bench.pods(), "the end of the pod")


def test_a_debug_container_does_not_end_a_pod_when_the_node_starts_again(bench: NodeBench):
    bench.apply(pod(bench, "p", "while :; do sleep 0.1; done"))
    until(lambda: bench.phase("p") == "Running")
    debug = {"ephemeralContainers": [{"name": "debug", "image": "kvasir-local/process"}]}
    bench.core.patch_namespaced_pod_ephemeralcontainers("p", bench.namespace, {"spec": debug})
    bench.stop()
    bench.start()
    until(lambda: bench.container("p").get("restartCount") == 1 and bench.phase("p") == "Running")


def test_a_second_node_on_the_same_directory_is_refused(bench: NodeBench):
    import subprocess
    import sys

    command = [sys.executable, "-m", "kvasir_local.node", "--kubeconfig", str(bench.state_dir / "kubeconfig")]
    command += ["--node-name", "other", "--state-dir", str(bench.state_dir)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 1
    assert "another process node runs on" in found.stderr
