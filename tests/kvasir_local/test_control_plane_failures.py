"""Members that die, hang or cannot start are said with their last words, and nothing is left running."""

import socket
import stat
import subprocess
import time

import pytest

from kvasir_local import addresses, cluster_state, component_flags, locks, processes
from kvasir_local.control_plane import ControlPlane
from kvasir_local.errors import ComponentFailedError, LocalClusterError, PortTakenError, StaleStateError
from kvasir_local.progress import SilentProgress
from kvasir_local.state_paths import StatePaths

DIES = "#!/bin/sh\necho I cannot do this >&2\nexit 7\n"
HANGS = "#!/bin/sh\necho hanging about\nexec sleep 600\n"


def binaries(tmp_path, script):
    directory = tmp_path / "bin"
    directory.mkdir()
    for name in component_flags.BINARIES:
        (directory / name).write_text(script)
        (directory / name).chmod(stat.S_IRWXU)
    return directory


def test_a_member_that_dies_is_said_with_its_last_words(tmp_path):
    cluster = ControlPlane(state_dir=tmp_path / "state", binaries=binaries(tmp_path, DIES))
    with pytest.raises(ComponentFailedError, match=r"etcd died.*\n    I cannot do this"):
        cluster.start()
    assert processes.marked(tmp_path / "state") == []
    assert cluster_state.read(cluster.paths) is None


def test_a_cluster_of_an_owner_that_has_ended_does_not_start(tmp_path):
    with subprocess.Popen(["true"]) as owner:
        pass
    cluster = ControlPlane(state_dir=tmp_path / "state", binaries=binaries(tmp_path, DIES), owner=owner.pid)
    with pytest.raises(LocalClusterError, match=f"would end with process {owner.pid}, which has ended"):
        cluster.start()
    assert processes.marked(tmp_path / "state") == []


def test_a_member_that_hangs_is_given_up(tmp_path):
    log = StatePaths(root=tmp_path / "state").log(component_flags.ETCD)

    class UntilItSpoke(SilentProgress):
        """Waits for the line of a program that a busy machine starts late; before that, another cluster may start."""

        def waiting(self, text):
            deadline = time.monotonic() + 60
            while log.exists() and not log.read_text():
                assert time.monotonic() < deadline, text
                time.sleep(0.01)

    cluster = ControlPlane(
        state_dir=tmp_path / "state", binaries=binaries(tmp_path, HANGS), progress=UntilItSpoke(), ready_timeout_s=1.0
    )
    with pytest.raises(ComponentFailedError, match=r"(?s)etcd is not ready after 1 s:.*hanging about"):
        cluster.start()
    assert processes.marked(tmp_path / "state") == []


def test_a_taken_port_is_said_before_anything_starts(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        cluster = ControlPlane(state_dir=tmp_path / "state", binaries=tmp_path, apiserver_port=server.getsockname()[1])
        with pytest.raises(PortTakenError, match="wanted for kube-apiserver"):
            cluster.start()


def test_a_directory_of_somebody_else_is_left_alone(tmp_path):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "precious").touch()
    cluster = ControlPlane(state_dir=tmp_path, binaries=tmp_path)
    for action in (cluster.start, cluster.stop):
        with pytest.raises(StaleStateError, match="holds config, which no local cluster put there"):
            action()
    assert (tmp_path / "config" / "precious").exists()


def test_a_file_that_is_no_record_does_not_hinder_the_end(tmp_path):
    paths = StatePaths(root=tmp_path)
    paths.lock.touch()
    paths.state.write_text("not a record")
    cluster = ControlPlane(state_dir=tmp_path, binaries=tmp_path)
    with pytest.raises(StaleStateError, match="kvasir local down"):
        cluster.start()
    assert cluster.stop() == []
    assert not paths.state.exists()


def test_addresses_are_chosen_while_no_other_cluster_starts(tmp_path):
    class Impatient(SilentProgress):
        def waiting(self, text):
            raise InterruptedError(text)

    cluster = ControlPlane(state_dir=tmp_path / "state", binaries=tmp_path, progress=Impatient())
    with (
        locks.held(addresses.lock_file(), progress=SilentProgress(), waiting=""),
        pytest.raises(InterruptedError, match="another cluster starts"),
    ):
        cluster.start()


def test_processes_left_behind_are_stopped(tmp_path):
    left = processes.start(
        ["/bin/sleep", "600"], log=tmp_path / "log", environment={processes.STATE_DIR_VARIABLE: str(tmp_path / "state")}
    )
    deadline = time.monotonic() + 60
    while not processes.marked(tmp_path / "state"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert ControlPlane(state_dir=tmp_path / "state").stop() == [f"pid {left.pid}: /bin/sleep 600"]
    assert not processes.alive(left)


def test_without_a_cluster_the_way_to_one_is_said(tmp_path):
    with pytest.raises(StaleStateError, match="`kvasir local up` starts one"):
        _ = ControlPlane(state_dir=tmp_path).state
    with pytest.raises(LocalClusterError, match="without its binaries"):
        ControlPlane(state_dir=tmp_path / "state").start()
