"""Pods that speak TLS: their URLs, and readings that verify them by name and authority."""

import asyncio
import contextlib
import socket

import pytest

from fakes import tls_files
from fakes.gateway import pod
from fakes.stub_runtime import StubRuntime
from kvasir_kube import pod_tls
from kvasir_kube.pod_tls import PodTls
from kvasir_kube.state_reader import StateReader

LATE_S = 60.0
NAME = "chat.team.svc"


@pytest.fixture(scope="module")
def ca():
    return tls_files.authority()


@contextlib.asynccontextmanager
async def speaking_tls(directory):
    stub = StubRuntime("p")
    stub.tls = tls_files.server_side(directory)
    await stub.start()
    try:
        yield stub, pod_tls.base_url("127.0.0.1", stub.ops_port, NAME)
    finally:
        await stub.stop()


def test_a_pod_says_by_its_annotation_that_it_speaks_tls():
    plain, secure = pod("chat", "p", namespace="team"), pod("chat", "p", namespace="team", tls=True)
    assert [pod_tls.server_name(one) for one in (plain, secure)] == ["", NAME]


def test_urls_have_the_name_that_is_verified():
    assert pod_tls.base_url("10.0.0.1", 8001, "") == "http://10.0.0.1:8001"
    secure = pod_tls.base_url("fd00::1", 8001, NAME)
    assert (secure, pod_tls.plain(secure)) == (f"https://[fd00::1]:8001#{NAME}", "https://[fd00::1]:8001")


def test_what_is_no_certificate_changes_nothing(ca):
    tls = PodTls()
    assert tls.trust(ca.certificate.decode())
    context = tls.context
    assert not tls.trust(ca.certificate.decode())
    with pytest.raises(ValueError, match="no certificates"):
        tls.trust("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    assert (tls.context, tls.authority) == (context, ca.certificate.decode())


async def test_a_pod_is_read_by_the_authority_alone_and_under_its_name(ca, tmp_path):
    tls_files.issued(ca, tmp_path, names=("*.team.svc",))
    async with speaking_tls(tmp_path) as (stub, url), StateReader() as reader:
        assert await reader.states({1: url}, deadline_s=LATE_S) == {}, "no authority is known"
        reader.tls.trust(tls_files.authority().certificate.decode())
        assert await reader.states({1: url}, deadline_s=LATE_S) == {}, "another authority"
        reader.tls.trust(ca.certificate.decode())
        elsewhere = url.replace("team", "other")
        assert await reader.states({1: elsewhere}, deadline_s=LATE_S) == {}, "another namespace"
        assert stub.state_reads == 0
        assert set(await reader.states({1: url}, deadline_s=LATE_S)) == {1}
        assert await reader.drain(url, on=True, deadline_s=LATE_S)
        assert stub.drains == ["POST"]


async def test_plain_http_is_no_answer_of_a_pod_that_should_speak_tls(ca):
    stub = await StubRuntime("p").start()
    async with StateReader() as reader:
        reader.tls.trust(ca.certificate.decode())
        assert await reader.states({1: pod_tls.base_url("127.0.0.1", stub.ops_port, NAME)}, deadline_s=LATE_S) == {}
    assert stub.state_reads == 0
    await stub.stop()


async def test_a_pod_that_could_not_be_verified_yet_does_not_wait_behind_silent_ones(ca, tmp_path):
    tls_files.issued(ca, tmp_path, names=("*.team.svc",))
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        silent = f"http://127.0.0.1:{closed.getsockname()[1]}"
        async with speaking_tls(tmp_path) as (_, url), StateReader(most_open=1) as reader:
            assert await reader.states({1: url, 2: silent}, deadline_s=LATE_S) == {}
            closed.listen()  # the kernel accepts from now on, and nothing answers
            reader.tls.trust(ca.certificate.decode())
            waiting = asyncio.create_task(reader.states({2: silent}, deadline_s=2 * LATE_S))
            await asyncio.sleep(0)  # it is in the queue before the other one
            try:
                assert await reader.states({1: url}, deadline_s=LATE_S)
                assert not waiting.done()
            finally:
                waiting.cancel()
                await asyncio.wait([waiting])
