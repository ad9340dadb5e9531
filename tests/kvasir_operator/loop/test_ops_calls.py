"""Calls of the operator are signed for the process that is called, where there are keys."""

from fakes.clock import FakeClock
from fakes.cluster import FakeCluster
from fakes.readings import FakeReader
from kvasir_api import names
from kvasir_api.ops_tokens import Verifier
from kvasir_kube.kinds import SECRET
from kvasir_operator.loop.ops_calls import OpsCalls
from kvasir_operator.loop.signing_secret import SigningSecret


async def test_a_drain_is_signed_for_one_process():
    cluster, clock, reader = FakeCluster(), FakeClock(), FakeReader()
    await cluster.put(SECRET, {"metadata": {"namespace": "home", "name": names.SIGNING_SECRET}})
    keys = SigningSecret(cluster, namespace="home", clock=clock)
    calls = OpsCalls(reader, keys)
    assert calls.public_keys == ""
    await keys.refresh()
    assert await calls.drain("http://10.0.0.1:8001", "pod-a", on=True)
    (header,) = reader.signed
    public = calls.public_keys.splitlines()
    assert "another process" in Verifier("pod-b", wall=clock.wall).refusal(header, "POST", "/drain", b"", public)
    assert Verifier("pod-a", wall=clock.wall).refusal(header, "POST", "/drain", b"", public) == ""


async def test_without_keys_nothing_is_signed():
    reader = FakeReader()
    calls = OpsCalls(reader)
    assert await calls.drain("http://10.0.0.1:8001", "pod-a", on=False)
    assert await calls.introduce("http://10.0.0.1:8001", "pod-a", ("http://10.0.0.2:8001",))
    assert (reader.signed, calls.public_keys) == ([""], "")
