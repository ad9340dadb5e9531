"""What a state directory means, and that its file is read back as written."""

import pytest

from kvasir_local import record
from kvasir_local.errors import StaleStateError
from kvasir_local.layout import Layout
from kvasir_local.members import Network
from kvasir_local.processes import Identity
from kvasir_local.record import Finding, Member, Node, State

NETWORK = Network(
    etcd=1, etcd_peer=2, apiserver=3, controller_manager=4, scheduler=5, pod_network="127.40", node_address="127.0.0.1"
)
ETCD = Identity(pid=10, start_ticks=100)
SERVER = Identity(pid=11, start_ticks=101)
STATE = State(
    schema=record.SCHEMA,
    boot_id="boot",
    binaries="/bin",
    network=NETWORK,
    members=(Member(name="etcd", process=ETCD), Member(name="kube-apiserver", process=SERVER)),
)
REUSED_PID = Identity(pid=10, start_ticks=999)


@pytest.mark.parametrize(
    ("state", "boot_id", "living", "want", "dead"),
    [
        (None, "boot", set(), Finding.NOTHING, ()),
        (STATE, "boot", {ETCD, SERVER}, Finding.HEALTHY, ()),
        (STATE, "boot", {SERVER}, Finding.DAMAGED, ("etcd",)),
        (STATE, "boot", {SERVER, REUSED_PID}, Finding.DAMAGED, ("etcd",)),
        (STATE, "boot", set(), Finding.STALE, ("etcd", "kube-apiserver")),
        (STATE, "another boot", {ETCD, SERVER}, Finding.STALE, ("etcd", "kube-apiserver")),
    ],
)
def test_examine(state, boot_id, living, want, dead):
    verdict = record.examine(state, boot_id=boot_id, living=living)
    assert (verdict.finding, verdict.dead) == (want, dead)
    assert verdict.reason


def test_a_member_started_again_replaces_the_dead_one():
    again = STATE.with_member(Member(name="etcd", process=REUSED_PID))
    assert again.process("etcd") == REUSED_PID
    assert [member.name for member in again.members] == ["etcd", "kube-apiserver"]


def test_a_state_is_read_as_it_was_written(tmp_path):
    layout = Layout(root=tmp_path)
    state = STATE.with_node(Node(name="n", index=0, fake_gpus=4))
    record.write(layout, state)
    assert record.read(layout) == state
    assert layout.state.stat().st_mode & 0o777 == 0o600
    record.forget(layout)
    assert record.read(layout) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": 1}', "\x00\xff"])
def test_a_damaged_file_is_said(tmp_path, content):
    layout = Layout(root=tmp_path)
    layout.state.write_text(content)
    with pytest.raises(StaleStateError, match="is not a record of a cluster"):
        record.read(layout)


def test_a_file_of_another_version_is_said(tmp_path):
    layout = Layout(root=tmp_path)
    record.write(layout, State(schema=99, boot_id="b", binaries="/bin", network=NETWORK))
    with pytest.raises(StaleStateError, match="schema 99, expected 1"):
        record.read(layout)
