"""What a state directory means, and that its file is read back as written."""

import pytest

from kvasir_local import cluster_state
from kvasir_local.cluster_state import ClusterHealth, ClusterState, RecordedNode, RecordedProcess
from kvasir_local.component_flags import Network
from kvasir_local.errors import StaleStateError
from kvasir_local.processes import ProcessIdentity
from kvasir_local.state_paths import StatePaths

NETWORK = Network(
    etcd=1, etcd_peer=2, apiserver=3, controller_manager=4, scheduler=5, pod_network="127.40", node_address="127.0.0.1"
)
ETCD = ProcessIdentity(pid=10, start_ticks=100)
SERVER = ProcessIdentity(pid=11, start_ticks=101)
STATE = ClusterState(
    schema=cluster_state.SCHEMA,
    boot_id="boot",
    binaries="/bin",
    network=NETWORK,
    processes=(RecordedProcess(name="etcd", process=ETCD), RecordedProcess(name="kube-apiserver", process=SERVER)),
)
REUSED_PID = ProcessIdentity(pid=10, start_ticks=999)


@pytest.mark.parametrize(
    ("state", "boot_id", "living", "want", "dead"),
    [
        (None, "boot", set(), ClusterHealth.NOTHING, ()),
        (STATE, "boot", {ETCD, SERVER}, ClusterHealth.HEALTHY, ()),
        (STATE, "boot", {SERVER}, ClusterHealth.DAMAGED, ("etcd",)),
        (STATE, "boot", {SERVER, REUSED_PID}, ClusterHealth.DAMAGED, ("etcd",)),
        (STATE, "boot", set(), ClusterHealth.STALE, ("etcd", "kube-apiserver")),
        (STATE, "another boot", {ETCD, SERVER}, ClusterHealth.STALE, ("etcd", "kube-apiserver")),
    ],
)
def test_examine(state, boot_id, living, want, dead):
    diagnosis = cluster_state.diagnose(state, boot_id=boot_id, living=living)
    assert (diagnosis.health, diagnosis.dead) == (want, dead)
    assert diagnosis.reason


def test_a_member_started_again_replaces_the_dead_one():
    again = STATE.with_process(RecordedProcess(name="etcd", process=REUSED_PID))
    assert again.process("etcd") == REUSED_PID
    assert [member.name for member in again.processes] == ["etcd", "kube-apiserver"]


def test_a_state_is_read_as_it_was_written(tmp_path):
    paths = StatePaths(root=tmp_path)
    state = STATE.with_node(RecordedNode(name="n", index=0, fake_gpus=4))
    cluster_state.write(paths, state)
    assert cluster_state.read(paths) == state
    assert paths.state.stat().st_mode & 0o777 == 0o600
    cluster_state.forget(paths)
    assert cluster_state.read(paths) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": 1}', "\x00\xff"])
def test_a_damaged_file_is_said(tmp_path, content):
    paths = StatePaths(root=tmp_path)
    paths.state.write_text(content)
    with pytest.raises(StaleStateError, match="is not a record of a cluster"):
        cluster_state.read(paths)


def test_a_file_of_another_version_is_said(tmp_path):
    paths = StatePaths(root=tmp_path)
    cluster_state.write(paths, ClusterState(schema=99, boot_id="b", binaries="/bin", network=NETWORK))
    with pytest.raises(StaleStateError, match=f"schema 99, expected {cluster_state.SCHEMA}"):
        cluster_state.read(paths)
