"""What goes wrong with a running local cluster is seen, said and mended, never waited for in silence.

Each test runs a control plane of its own, through the command that people use.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvasir_local import addresses, binaries, cluster_state, component_flags, processes
from kvasir_local.control_plane import ControlPlane
from kvasir_local.errors import ComponentFailedError
from kvasir_local.progress import SilentProgress
from kvasir_local.state_paths import StatePaths

NODE = "node/kvasir-0"

pytestmark = pytest.mark.e2e


def kvasir(state_dir: Path, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("kvasir")), "local", verb, *arguments]
    environment = {**os.environ, "KVASIR_STATE_DIR": str(state_dir)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=100)


@pytest.fixture
def state_dir(tmp_path):
    yield tmp_path / "state"
    ControlPlane(state_dir=tmp_path / "state").stop()
    assert processes.marked(tmp_path / "state") == []


def until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def kill(state_dir: Path, *names: str) -> None:
    state = cluster_state.read(StatePaths(root=state_dir))
    assert state is not None
    victims = [state.process(name) for name in names]
    for victim in victims:
        os.kill(victim.pid, signal.SIGKILL)
    until(lambda: not any(processes.alive(victim) for victim in victims))


def test_the_life_of_a_cluster(state_dir):
    up = kvasir(state_dir, "up", "--no-operator", "--fake-gpus=2")
    assert up.returncode == 0, up.stderr
    assert "control plane ready after" in up.stderr
    assert "node kvasir-0 is Ready" in up.stderr
    assert f"kubeconfig  {state_dir}/kubeconfig" in up.stdout

    names = (*component_flags.COMPONENTS, NODE)
    status = kvasir(state_dir, "status")
    assert status.returncode == 0, status.stdout
    assert [line.split()[:2] for line in status.stdout.splitlines()[:5]] == [["ok", name] for name in names]
    made = kvasir(state_dir, "kubectl", "--", "create", "configmap", "kept", "--from-literal=a=1")
    assert made.stdout == "configmap/kept created\n"

    # Some members die: said by status, mended by up, with the data.
    kill(state_dir, component_flags.APISERVER, component_flags.SCHEDULER, NODE)
    status = kvasir(state_dir, "status")
    assert status.returncode == 1
    for name in (component_flags.APISERVER, component_flags.SCHEDULER, NODE):
        assert f"FAILED  {name}" in status.stdout
    again = kvasir(state_dir, "up", "--no-operator")
    assert again.returncode == 0, again.stderr
    assert "kube-scheduler died; it is started again" in again.stderr
    assert kvasir(state_dir, "status").returncode == 0
    assert kvasir(state_dir, "kubectl", "get", "configmap", "kept", "-oname").stdout == "configmap/kept\n"

    # Everything dies: the record is stale, and a new cluster takes its place.
    state = cluster_state.read(StatePaths(root=state_dir))
    kill(state_dir, *(member.name for member in state.processes))
    assert kvasir(state_dir, "status").returncode == 3
    fresh = kvasir(state_dir, "up", "--no-operator")
    assert fresh.returncode == 0, fresh.stderr
    assert "describes a cluster that is gone (none of its processes runs)" in fresh.stderr
    assert kvasir(state_dir, "kubectl", "get", "configmap", "kept").returncode == 1

    down = kvasir(state_dir, "down")
    assert down.returncode == 0
    assert [line for line in down.stdout.splitlines() if "pid" in line] == []
    assert down.stdout.splitlines()[0] == "stopped node/kvasir-0"
    assert processes.marked(state_dir) == []
    assert kvasir(state_dir, "down").stdout == f"nothing ran in {state_dir}\n"
    assert kvasir(state_dir, "status").returncode == 3


OWNER = """
import sys, time
from collections.abc import Callable
from pathlib import Path
from kvasir_local.control_plane import ControlPlane
with ControlPlane(state_dir=Path(sys.argv[1]), binaries=Path(sys.argv[2])):
    print("up", flush=True)
    time.sleep(600)
"""


def test_a_cluster_ends_with_its_killed_owner(state_dir):
    found = binaries.provide(progress=SilentProgress())
    with subprocess.Popen([sys.executable, "-c", OWNER, str(state_dir), str(found)], stdout=subprocess.PIPE) as owner:
        assert owner.stdout.readline() == b"up\n"
        assert len(processes.marked(state_dir)) == len(component_flags.COMPONENTS) + 1
        owner.kill()
    until(lambda: not processes.marked(state_dir))
    assert cluster_state.read(StatePaths(root=state_dir)) is None
    assert (
        f"the owner, pid {owner.pid}, is gone; stopped kube-scheduler"
        in StatePaths(root=state_dir).log("watchdog").read_text()
    )


def test_a_recorded_port_that_somebody_took_is_said(state_dir):
    cluster = ControlPlane(state_dir=state_dir, binaries=binaries.provide(progress=SilentProgress()))
    cluster.start()
    kill(state_dir, component_flags.SCHEDULER)
    port = cluster.state.network.scheduler
    thief = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    with subprocess.Popen(thief, stderr=subprocess.DEVNULL) as taking:
        try:
            until(lambda: not addresses.is_free(port))
            up = kvasir(state_dir, "up", "--no-operator", "--nodes=0")
            status = kvasir(state_dir, "status")
        finally:
            taking.kill()
    assert up.returncode == 1
    assert f"port {port} on 127.0.0.1, wanted for kube-scheduler, is taken by pid {taking.pid}" in up.stderr
    assert status.returncode == 1


def test_a_member_that_lives_but_does_not_answer_is_said(state_dir):
    cluster = ControlPlane(
        state_dir=state_dir, binaries=binaries.provide(progress=SilentProgress()), ready_timeout_s=60
    )
    cluster.start()
    pid = cluster.state.process(component_flags.APISERVER).pid
    os.kill(pid, signal.SIGSTOP)
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.01)
    impatient = ControlPlane(
        state_dir=state_dir, binaries=binaries.provide(progress=SilentProgress()), ready_timeout_s=0.1
    )
    with pytest.raises(ComponentFailedError, match=r"kube-apiserver is not ready after 0 s: .*timed out"):
        impatient.start()
    status = kvasir(state_dir, "status")
    assert status.returncode == 1
    assert "FAILED  kube-apiserver" in status.stdout
    stopped = kvasir(state_dir, "down").stdout.splitlines()
    assert "stopped kube-apiserver (killed)" in stopped


def test_state_is_json_for_other_tools(cluster):
    state = json.loads(cluster.paths.state.read_text())
    assert {member["name"] for member in state["processes"]} >= set(component_flags.COMPONENTS)
