"""Addresses, GPUs, claims, events, the Node: the smaller rooms."""

import pytest

from kvasir_local.node.rules import addresses, devices, local_volumes, node_object
from kvasir_local.node.rules.devices import Gpus
from kvasir_local.node.rules.events import EventAggregator, ObjectEvent
from kvasir_local.node.rules.kinds import ConfigError, epoch, micro_timestamp, timestamp


def test_addresses_rest_before_they_are_used_again():
    pods = addresses.network("127.20.0.0/29")
    assert addresses.choose(pods, frozenset(), None) == "127.20.0.1"
    assert addresses.choose(pods, frozenset({"127.20.0.2"}), "127.20.0.1") == "127.20.0.3"
    assert addresses.choose(pods, frozenset(), "127.20.0.6") == "127.20.0.1"
    assert addresses.choose(pods, frozenset(map(str, pods.hosts())), None) is None


@pytest.mark.parametrize("cidr", ["10.0.0.0/16", "127.0.0.0/24", "127.20.0.0/30", "nonsense"])
def test_bad_pod_networks_are_refused(cidr: str):
    with pytest.raises(ValueError):  # noqa: PT011 - ipaddress has its own words for nonsense
        addresses.network(cidr)


def pod(*counts: int) -> dict:
    names = [f"c{index}" for index in range(len(counts))]
    limits = [{"limits": {devices.GPU: str(count)}} for count in counts]
    return {"spec": {"containers": [{"name": n, "resources": r} for n, r in zip(names, limits, strict=True)]}}


def test_gpus_are_handed_out_once():
    gpus = Gpus(count=4, real=True)
    assert devices.assign(pod(1, 2), frozenset({1}), gpus) == {"c0": (0,), "c1": (2, 3)}
    assert devices.assign(pod(3), frozenset({0, 1}), gpus) is None
    assert devices.assign(pod(0), frozenset({0, 1, 2, 3}), gpus) == {"c0": ()}


def test_a_container_sees_only_its_own_gpus():
    present = frozenset({"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"})
    real = Gpus(count=2, real=True)
    assert devices.files((1,), real, present) == ("/dev/nvidia-uvm", "/dev/nvidia1", "/dev/nvidiactl")
    assert devices.files((), real, present) == ()
    assert devices.variables((0, 1), real)["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert devices.variables((), real)["CUDA_VISIBLE_DEVICES"] == ""
    assert devices.variables((0,), Gpus(count=2, real=False))["CUDA_VISIBLE_DEVICES"] == ""


def claim(**spec: object) -> dict:
    return {
        "metadata": {"name": "data", "namespace": "ns", "uid": "u"},
        "spec": {
            "storageClassName": "standard",
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Gi"}},
            **spec,
        },
        "status": {"phase": "Pending"},
    }


@pytest.mark.parametrize(
    ("spec", "want"),
    [({}, True), ({"storageClassName": "fast"}, False), ({"volumeName": "pv"}, False), ({"selector": {"a": 1}}, False)],
)
def test_only_pending_claims_of_our_class_get_a_volume(spec: dict, want: bool):
    assert local_volumes.wants_volume(claim(**spec)) is want


def test_a_volume_is_reserved_for_its_claim_and_dropped_only_below_our_root():
    volume = local_volumes.volume(claim(), "/state/volumes/ns/data")
    assert volume["spec"]["claimRef"]["uid"] == "u"
    assert volume["spec"]["capacity"] == {"storage": "1Gi"}
    assert local_volumes.droppable({**volume, "status": {"phase": "Bound"}}, "/state/volumes") is None
    released = {**volume, "status": {"phase": "Released"}}
    assert local_volumes.droppable(released, "/state/volumes") == "/state/volumes/ns/data"
    assert local_volumes.droppable(released, "/other") is None


def test_a_claim_has_a_directory_once_it_is_bound():
    bound = {**claim(volumeName="pv"), "status": {"phase": "Bound"}}
    volume = local_volumes.volume(claim(), "/d")
    assert local_volumes.directory_of(bound, volume, "data") == "/d"
    with pytest.raises(ConfigError, match="not found"):
        local_volumes.directory_of(None, None, "data")
    with pytest.raises(ConfigError, match="not bound"):
        local_volumes.directory_of(claim(), None, "data")
    with pytest.raises(ConfigError, match="no directory"):
        local_volumes.directory_of(bound, {"metadata": {"name": "pv"}, "spec": {"nfs": {}}}, "data")


def test_repeated_events_are_counted_and_written_seldom():
    note = ObjectEvent(kind="Pod", namespace="ns", name="p", uid="u", field="", reason="R", message="m", warning=True)
    events = EventAggregator()
    written = [events.due(note, now=float(second)) for second in range(25)]
    assert [entry.count for entry in written if entry] == [1, 11, 21]
    events.forget("u")
    entry = events.due(note, now=30.0)
    assert entry is not None
    assert entry.count == 1


def test_events_that_differ_in_words_alone_are_combined():
    def note(index: int) -> ObjectEvent:
        return ObjectEvent(
            kind="Pod", namespace="ns", name="p", uid="u", field="", reason="R", message=f"at {index}", warning=True
        )

    events = EventAggregator()
    written = [events.due(note(index), now=float(index)) for index in range(35)]
    assert [entry.message for entry in written[:10] if entry] == [f"at {index}" for index in range(10)]
    combined = [(entry.message, entry.count) for entry in written[10:] if entry]
    assert combined == [("(combined from similar events)", count) for count in (1, 11, 21)]


def test_the_node_offers_its_gpus_to_the_scheduler():
    machine = node_object.Machine(
        cpus=2,
        memory_bytes=2**30,
        disk_bytes=2**30,
        gpus=Gpus(count=4, real=False),
        architecture="amd64",
        kernel="6",
        system="Linux",
        machine_id="m",
        boot_id="b",
    )
    found = node_object.node_status("n", machine, version="1", port=1, ready=("KubeletReady", ""), now=2.0, since=1.0)
    assert found["status"]["allocatable"]["nvidia.com/gpu"] == "4"
    assert found["status"]["conditions"][-1]["status"] == "True"
    down = node_object.node_status("n", machine, version="1", port=1, ready=("Stopping", ""), now=2.0, since=1.0)
    assert down["status"]["conditions"][-1]["status"] == "False"


def test_times_are_written_and_read():
    assert timestamp(1_700_000_000.9) == "2023-11-14T22:13:20Z"
    assert micro_timestamp(1_700_000_000.5) == "2023-11-14T22:13:20.500000Z"
    assert epoch("2023-11-14T22:13:20Z") == 1_700_000_000
