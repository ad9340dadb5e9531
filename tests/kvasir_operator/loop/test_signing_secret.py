"""The Secret with the keys of the operator's calls: made, shared by two operators, rotated, and never lost silently."""

import asyncio
import base64
import contextlib

import pytest

from fakes.clock import FakeClock
from fakes.cluster import FakeCluster
from kvasir_api import names
from kvasir_api.ops_tokens import Verifier
from kvasir_kube.errors import ConflictError, NotFoundError
from kvasir_kube.kinds import SECRET
from kvasir_operator.desired.signing_keys import OVERLAP_S, ROTATED_AFTER_S
from kvasir_operator.loop.signing_secret import SigningSecret

HOME = "kvasir-system"


async def installed():
    """An installation's cluster with the Secret as it comes."""
    cluster = FakeCluster()
    await cluster.put(SECRET, {"metadata": {"namespace": HOME, "name": names.SIGNING_SECRET}})
    return cluster


def keys_of(cluster, clock):
    return SigningSecret(cluster, namespace=HOME, clock=clock)


def is_accepted(authorization, public, clock):
    verifier = Verifier("pod", wall=clock.wall)
    return verifier.refusal(authorization, "POST", "/drain", b"", public.splitlines()) == ""


async def test_the_first_operator_makes_a_key_and_the_next_finds_it():
    cluster, clock = await installed(), FakeClock()
    first, second = keys_of(cluster, clock), keys_of(cluster, clock)
    assert (first.public, first.authorization("pod", "POST", "/drain")) == ("", "")
    assert await first.refresh()
    assert not await first.refresh()
    assert await second.refresh()
    assert first.public == second.public
    assert len(cluster.writes) == 1
    assert is_accepted(second.authorization("pod", "POST", "/drain"), first.public, clock)


async def test_a_rotation_costs_no_call():
    cluster, clock = await installed(), FakeClock()
    keys = keys_of(cluster, clock)
    await keys.refresh()
    before = keys.public
    clock.advance(ROTATED_AFTER_S)
    assert await keys.refresh()
    both = keys.public
    assert both.splitlines()[0] == before
    assert is_accepted(keys.authorization("pod", "POST", "/drain"), before, clock), "pods have not read the new one yet"
    clock.advance(OVERLAP_S)
    await keys.refresh()
    assert not is_accepted(keys.authorization("pod", "POST", "/drain"), before, clock)
    assert is_accepted(keys.authorization("pod", "POST", "/drain"), both, clock)
    clock.advance(OVERLAP_S)
    assert await keys.refresh()
    assert keys.public == both.splitlines()[1]


async def test_of_two_that_believe_to_lead_one_makes_the_key():
    cluster, clock = await installed(), FakeClock()
    first, second = keys_of(cluster, clock), keys_of(cluster, clock)
    seen = await cluster.get(SECRET, HOME, names.SIGNING_SECRET)
    await first.refresh()
    version = seen["metadata"]["resourceVersion"]
    patch = {"metadata": {"resourceVersion": version}, "data": {"keys": ""}}
    with pytest.raises(ConflictError):  # what the second would have written
        await cluster.merge(SECRET, HOME, names.SIGNING_SECRET, patch, manager="x")
    await second.refresh()
    assert first.public == second.public


async def test_without_the_secret_no_call_is_signed_until_it_is_there():
    cluster, clock = FakeCluster(), FakeClock()
    keys, news = keys_of(cluster, clock), asyncio.Event()
    with pytest.raises(NotFoundError):
        await keys.refresh()
    assert keys.authorization("pod", "POST", "/drain") == ""
    await cluster.put(SECRET, {"metadata": {"namespace": HOME, "name": names.SIGNING_SECRET}})
    task = asyncio.create_task(keys.run(news.set))
    await asyncio.wait_for(news.wait(), 60.0)
    assert is_accepted(keys.authorization("pod", "POST", "/drain"), keys.public, clock)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("text", [b"", b"x", b"[]", b'[["key", 1.0]]', b'[["AAAA", 1.0]]', b"\xff\xfe"])
async def test_what_no_operator_wrote_is_replaced_and_not_shown(text, caplog):
    cluster, clock = await installed(), FakeClock()
    entry = {"keys": base64.b64encode(text).decode()}
    await cluster.put(SECRET, {"metadata": {"namespace": HOME, "name": names.SIGNING_SECRET}, "data": entry})
    keys = keys_of(cluster, clock)
    assert await keys.refresh()
    assert is_accepted(keys.authorization("pod", "POST", "/drain"), keys.public, clock)
    assert "key" not in [record.args for record in caplog.records]
