"""The authority of pods that speak TLS and their certificates: made, published, renewed, and never lost."""

import base64
import datetime as dt

import pytest
from cryptography import x509

from fakes.clock import FakeClock
from fakes.cluster import FakeCluster
from fakes.manifests import service
from kvasir_api import names
from kvasir_kube import certificates
from kvasir_kube.certificates import KeyPair
from kvasir_kube.errors import ConflictError, KubeError
from kvasir_kube.kinds import DEPLOYMENT, INFERENCE_SERVICE, SECRET
from kvasir_kube.pod_tls import PodTls
from kvasir_operator.desired.pod_certificates import (
    AUTHORITY_ROTATED_S,
    CERTIFICATE_S,
    DAY_S,
    RENEWALS_SPREAD_S,
    RENEWED_AFTER_S,
)
from kvasir_operator.desired.signing_keys import OVERLAP_S
from kvasir_operator.loop.pod_certificates import READ_EVERY_S, PodCertificates
from kvasir_operator.loop.store import Store

HOME, TEAM = names.SYSTEM_NAMESPACE, "default"


class Installed:
    """An installation with its Secrets as they come, and one service. started(): an operator of it."""

    def __init__(self):
        self.cluster, self.clock, self.store = FakeCluster(), FakeClock(), Store()

    async def put(self):
        for name in (names.SIGNING_SECRET, names.GATEWAY_KEYS_SECRET):
            await self.cluster.put(SECRET, {"metadata": {"namespace": HOME, "name": name}, "data": {"other": "eA=="}})
        self.store.put(INFERENCE_SERVICE, await self.cluster.put(INFERENCE_SERVICE, service()))
        return self

    def started(self):
        self.tls = PodTls()
        return PodCertificates(self.cluster, self.store, self.tls, home=HOME, clock=self.clock)

    async def serve_tls(self, namespace=TEAM):
        """The service of a namespace has a workload whose pods speak TLS."""
        template = {"metadata": {"annotations": {names.ANNOTATION_TLS: "true"}}, "spec": {}}
        metadata = {"namespace": namespace, "name": "tiny", "labels": {names.LABEL_SERVICE: "tiny"}}
        if namespace != TEAM:
            other = service()
            other["metadata"] |= {"namespace": namespace, "uid": f"uid-{namespace}"}
            self.store.put(INFERENCE_SERVICE, await self.cluster.put(INFERENCE_SERVICE, other))
        made = await self.cluster.put(DEPLOYMENT, {"metadata": metadata, "spec": {"template": template}})
        self.store.put(DEPLOYMENT, made)

    def entries(self, namespace=TEAM, name=names.POD_TLS_SECRET):
        data = self.cluster.stored(SECRET, namespace, name)["data"]
        return {entry: base64.b64decode(value) for entry, value in data.items()}

    def is_served(self, namespace=TEAM):
        """Whether pods of a namespace have a certificate of the authority beside it, and its key."""
        found = self.entries(namespace)
        pair = KeyPair(certificate=found["tls.crt"], key=found["tls.key"])
        return certificates.is_issued_by(pair.certificate, found["ca.crt"]) and certificates.fits(pair)

    def writes(self):
        written, self.cluster.writes = self.cluster.writes, []
        return [name for _, _, (_, name) in written]


@pytest.fixture
async def at():
    return await Installed().put()


async def test_pods_get_a_certificate_and_gateways_what_verifies_it(at):
    await at.started().ensure(TEAM)
    found = at.entries()
    assert set(found) == {"tls.crt", "tls.key", "ca.crt"}
    assert certificates.is_issued_by(found["tls.crt"], found["ca.crt"])
    published = at.entries(HOME, names.GATEWAY_KEYS_SECRET)
    assert (published[names.POD_CA_ENTRY], published["other"]) == (found["ca.crt"], b"x")
    assert at.tls.authority.encode() == found["ca.crt"]
    assert b"PRIVATE" not in published[names.POD_CA_ENTRY] + found["ca.crt"]
    assert "tls.key" not in at.entries(HOME, names.SIGNING_SECRET)


async def test_the_next_operator_goes_on_with_what_there_is(at):
    first = at.started()
    await first.ensure(TEAM)
    before = at.entries()
    at.writes()
    await first.ensure(TEAM)
    await at.started().ensure(TEAM)
    assert at.entries() == before
    assert at.writes() == []


async def test_without_pods_that_speak_tls_nothing_is_made(at):
    await at.started().refresh()
    assert (at.writes(), at.tls.authority) == ([], "")


async def test_a_certificate_is_renewed_long_before_it_ends(at):
    operator = at.started()
    await at.serve_tls()
    await operator.ensure(TEAM)
    before = at.entries()
    at.clock.advance(RENEWED_AFTER_S - RENEWALS_SPREAD_S - 1)
    await operator.refresh()
    assert at.entries() == before
    at.clock.advance(RENEWALS_SPREAD_S + 1)
    await operator.refresh()
    after = at.entries()
    assert after["tls.crt"] != before["tls.crt"]
    assert after["tls.key"] != before["tls.key"]
    assert after["ca.crt"] == before["ca.crt"]


async def test_another_authority_is_known_everywhere_before_it_signs(at):
    operator = at.started()
    await at.serve_tls()
    await operator.ensure(TEAM)
    first = at.entries()["ca.crt"]
    at.clock.advance(AUTHORITY_ROTATED_S)
    await operator.refresh()
    found = at.entries()
    assert found["ca.crt"].startswith(first)
    assert found["ca.crt"] != first
    assert at.entries(HOME, names.GATEWAY_KEYS_SECRET)[names.POD_CA_ENTRY] == found["ca.crt"]
    assert certificates.is_issued_by(found["tls.crt"], first)
    at.clock.advance(OVERLAP_S)
    await operator.refresh()
    second = found["ca.crt"].removeprefix(first)
    assert certificates.is_issued_by(at.entries()["tls.crt"], second)
    at.clock.advance(CERTIFICATE_S)
    await operator.refresh()
    assert at.entries()["ca.crt"] == second == at.tls.authority.encode()


async def test_a_service_more_is_an_owner_more(at):
    operator = at.started()
    await operator.ensure(TEAM)
    other = service()
    other["metadata"] |= {"name": "other", "uid": "uid-other"}
    at.store.put(INFERENCE_SERVICE, await at.cluster.put(INFERENCE_SERVICE, other))
    before = at.entries()
    await operator.ensure(TEAM)
    owners = at.cluster.stored(SECRET, TEAM, names.POD_TLS_SECRET)["metadata"]["ownerReferences"]
    assert {owner["name"] for owner in owners} == {"tiny", "other"}
    assert at.entries() == before


async def test_a_secret_of_that_name_that_is_anothers_is_not_touched(at):
    theirs = {"metadata": {"namespace": TEAM, "name": names.POD_TLS_SECRET}, "data": {"tls.crt": "eA=="}}
    await at.cluster.put(SECRET, theirs)
    with pytest.raises(ConflictError, match="not the operator's"):
        await at.started().ensure(TEAM)
    assert at.entries() == {"tls.crt": b"x"}


@pytest.mark.parametrize("entry", ["tls.crt", "tls.key"])
async def test_what_was_spoilt_is_written_again(at, entry):
    await at.started().ensure(TEAM)
    spoilt = at.cluster.stored(SECRET, TEAM, names.POD_TLS_SECRET)
    await at.cluster.put(SECRET, {**spoilt, "data": {**spoilt["data"], entry: ""}})
    await at.started().ensure(TEAM)
    found = at.entries()
    assert certificates.is_issued_by(found["tls.crt"], found["ca.crt"])
    assert found["tls.key"]


async def test_an_operator_that_cannot_write_says_so_and_writes_later(at):
    operator = at.started()
    at.cluster.errors["apply"] = [KubeError("away", status=500)]
    with pytest.raises(KubeError):
        await operator.ensure(TEAM)
    await operator.ensure(TEAM)
    assert at.entries()["tls.key"]


async def test_the_certificate_has_the_names_of_all_services_of_the_namespace(at):
    await at.started().ensure(TEAM)
    leaf = x509.load_pem_x509_certificate(at.entries()["tls.crt"])
    alternatives = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert alternatives.get_values_for_type(x509.DNSName) == [f"*.{TEAM}.svc"]


async def test_a_namespace_whose_secret_cannot_be_written_keeps_no_other_from_renewal(at):
    operator = at.started()
    for namespace in ("a-first", TEAM):
        await at.serve_tls(namespace)
    theirs = {"metadata": {"namespace": "a-first", "name": names.POD_TLS_SECRET}, "data": {"tls.crt": "eA=="}}
    await at.cluster.put(SECRET, theirs)
    failed = await operator.refresh()
    assert list(failed) == ["a-first"]
    assert "not the operator's" in failed["a-first"]
    assert at.is_served()
    before = at.entries()
    at.clock.advance(RENEWED_AFTER_S)
    assert list(await operator.refresh()) == ["a-first"]
    assert at.is_served()
    assert at.entries()["tls.crt"] != before["tls.crt"]
    await at.cluster.drop(SECRET, "a-first", names.POD_TLS_SECRET)
    assert await operator.refresh() == {}
    assert at.is_served("a-first")


@pytest.mark.parametrize("entry", ["", "tls.crt", "tls.key", "ca.crt"])
@pytest.mark.parametrize("asked", [True, False])
async def test_a_secret_that_was_deleted_or_edited_is_repaired_within_minutes(at, entry, asked):
    operator = at.started()
    await at.serve_tls()
    await operator.ensure(TEAM)
    whole = at.cluster.stored(SECRET, TEAM, names.POD_TLS_SECRET)
    other = certificates.authority("another", now=dt.datetime.fromtimestamp(at.clock.wall(), dt.UTC))
    wrong = base64.b64encode(other.key if entry == "tls.key" else other.certificate).decode()
    if entry:
        await at.cluster.put(SECRET, {**whole, "data": {**whole["data"], entry: wrong}})
    else:
        await at.cluster.drop(SECRET, TEAM, names.POD_TLS_SECRET)
    if asked:
        await operator.ensure(TEAM)
    else:
        at.clock.advance(READ_EVERY_S)
        await operator.refresh()
    assert at.is_served()


async def test_what_is_right_is_read_now_and_then_and_not_written(at):
    operator = at.started()
    await at.serve_tls()
    await operator.ensure(TEAM)
    at.writes()
    reads = 0
    for _ in range(10):
        at.cluster.reads.clear()
        await operator.refresh()
        reads += at.cluster.reads.count((TEAM, names.POD_TLS_SECRET))
        at.clock.advance(60.0)
    assert at.writes() == []
    assert 1 <= reads <= 10 * 60.0 / READ_EVERY_S + 1


async def test_a_certificate_that_a_clock_of_the_future_issued_is_replaced(at):
    operator = at.started()
    await at.serve_tls()
    await operator.ensure(TEAM)
    first = at.entries()
    at.clock.advance(20 * DAY_S)
    at.clock.jump(365 * DAY_S)
    await operator.refresh()
    ahead = at.entries()
    assert ahead["tls.crt"] != first["tls.crt"]
    at.clock.jump(-365 * DAY_S)
    await operator.refresh()
    now = dt.datetime.fromtimestamp(at.clock.wall(), dt.UTC)
    found = x509.load_pem_x509_certificate(at.entries()["tls.crt"])
    assert found.not_valid_before_utc < now < found.not_valid_after_utc
    assert at.is_served()


async def test_an_authority_that_is_not_valid_yet_signs_nothing_where_there_is_another(at):
    at.clock.jump(365 * DAY_S)
    await at.started().ensure(TEAM)
    ahead = at.entries()
    at.clock.jump(-365 * DAY_S)
    await at.serve_tls()
    operator = at.started()
    await operator.refresh()
    found = at.entries()
    assert found["ca.crt"].startswith(ahead["ca.crt"]), "it stays trusted"
    made = found["ca.crt"].removeprefix(ahead["ca.crt"])
    assert certificates.is_issued_by(found["tls.crt"], made)
    before = at.entries(HOME, names.SIGNING_SECRET)
    await operator.refresh()
    assert (at.entries(), at.entries(HOME, names.SIGNING_SECRET)) == (found, before)


async def test_who_takes_over_verifies_pods_before_it_reads_them(at):
    await at.started().prepare()
    assert at.tls.authority == "", "there is none yet, and none is made"
    await at.started().ensure(TEAM)
    at.writes()
    await at.started().prepare()
    assert at.tls.authority.encode() == at.entries()["ca.crt"]
    at.cluster.errors["get"] = [KubeError("away", status=500)]
    await at.started().prepare()
    assert (at.tls.authority, at.writes()) == ("", [])
