"""Calls of the operator are signed for the process that is called, where there are keys."""

import pytest

from fakes.clock import FakeClock
from fakes.cluster import FakeCluster
from fakes.readings import FakeReader
from kvasir_api import names
from kvasir_api.http_apis import new_instance
from kvasir_api.ops_tokens import SCHEME, Verifier
from kvasir_kube.kinds import SECRET
from kvasir_operator.loop.ops_calls import CalledProcess, OpsCalls
from kvasir_operator.loop.signing_secret import SigningSecret

SERVICE, BASE = ("team", "a"), "http://10.0.0.1:8001"
PEER = CalledProcess(base="http://10.0.0.2:8001", service=SERVICE, instance=new_instance("team/a"))


async def test_a_drain_is_signed_for_one_process():
    cluster, clock, reader = FakeCluster(), FakeClock(), FakeReader()
    await cluster.put(SECRET, {"metadata": {"namespace": "home", "name": names.SIGNING_SECRET}})
    keys = SigningSecret(cluster, namespace="home", clock=clock)
    calls = OpsCalls(reader, keys)
    assert calls.public_keys == ""
    await keys.refresh()
    process, another = new_instance("team/a"), new_instance("team/a")
    assert await calls.drain(CalledProcess(base=BASE, service=SERVICE, instance=process), on=True)
    (header,) = reader.signed
    public = calls.public_keys.splitlines()
    assert "another process" in Verifier(another, wall=clock.wall).refusal(header, "POST", "/drain", b"", public)
    assert Verifier(process, wall=clock.wall).refusal(header, "POST", "/drain", b"", public) == ""


async def test_a_replica_that_starts_may_read_the_prefixes_of_each_peer_once():
    cluster, clock, reader = FakeCluster(), FakeClock(), FakeReader()
    await cluster.put(SECRET, {"metadata": {"namespace": "home", "name": names.SIGNING_SECRET}})
    keys = SigningSecret(cluster, namespace="home", clock=clock)
    await keys.refresh()
    calls = OpsCalls(reader, keys)
    await calls.introduce(CalledProcess(base=BASE, service=SERVICE, instance=new_instance("team/a")), (PEER,))
    header, public = f"{SCHEME}{reader.peer_tokens[PEER.base]}", calls.public_keys.splitlines()
    verifier = Verifier(PEER.instance, wall=clock.wall)
    assert "another call" in verifier.refusal(header, "POST", names.PATH_DRAIN, b"", public)
    assert verifier.refusal(header, "GET", names.TARGET_PREFIXES, b"", public) == ""
    assert "used before" in verifier.refusal(header, "GET", names.TARGET_PREFIXES, b"", public)


async def test_a_replica_that_stays_may_read_the_prefixes_of_one_that_leaves_once():
    cluster, clock, reader = FakeCluster(), FakeClock(), FakeReader()
    await cluster.put(SECRET, {"metadata": {"namespace": "home", "name": names.SIGNING_SECRET}})
    keys = SigningSecret(cluster, namespace="home", clock=clock)
    await keys.refresh()
    calls, staying = OpsCalls(reader, keys), new_instance("team/a")
    assert await calls.prefetch(CalledProcess(base=BASE, service=SERVICE, instance=staying), PEER)
    assert reader.prefetches == [(BASE, PEER.base)]
    header, public = f"{SCHEME}{reader.prefetch_tokens[0]}", calls.public_keys.splitlines()
    verifier = Verifier(PEER.instance, wall=clock.wall)
    assert verifier.refusal(header, "GET", names.TARGET_PREFIXES, b"", public) == ""
    assert "used before" in verifier.refusal(header, "GET", names.TARGET_PREFIXES, b"", public)


@pytest.mark.parametrize("named", ["team/b", "other/a", ""])
async def test_a_pod_that_names_a_process_of_another_service_gets_no_signed_call(named):
    """It could send it to that process, which would drain, fetch from this pod's peers or take its keys."""
    cluster, reader = FakeCluster(), FakeReader()
    await cluster.put(SECRET, {"metadata": {"namespace": "home", "name": names.SIGNING_SECRET}})
    keys = SigningSecret(cluster, namespace="home", clock=FakeClock())
    await keys.refresh()
    calls, process = OpsCalls(reader, keys), CalledProcess(base=BASE, service=SERVICE, instance=new_instance(named))
    await calls.drain(process, on=True)
    await calls.introduce(process, (PEER,))
    await calls.prefetch(process, PEER)
    await calls.give_keys(process, "sealed")
    assert reader.signed == ["", "", "", ""]


async def test_without_keys_nothing_is_signed():
    reader = FakeReader()
    calls = OpsCalls(reader)
    process = CalledProcess(base=BASE, service=SERVICE, instance=new_instance("team/a"))
    assert await calls.drain(process, on=False)
    assert await calls.introduce(process, (PEER,))
    assert (reader.signed, calls.public_keys) == (["", ""], "")
