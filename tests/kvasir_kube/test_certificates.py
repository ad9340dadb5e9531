"""Certificates are checked as the other side checks them: by OpenSSL's rules."""

import datetime as dt
import ipaddress

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import NameOID

from kvasir_api.ops_tokens import TOLERANCE_S
from kvasir_kube import certificates
from kvasir_kube.certificates import KeyPair

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def ca():
    return certificates.authority("test", now=NOW)


def parsed(pair):
    return x509.load_pem_x509_certificate(pair.certificate)


def test_leaf_is_signed_by_its_authority_and_by_no_other(ca):
    leaf = parsed(certificates.leaf(ca, user="u", now=NOW))
    leaf.verify_directly_issued_by(parsed(ca))
    with pytest.raises(InvalidSignature):
        leaf.verify_directly_issued_by(parsed(certificates.authority("test", now=NOW)))


def test_user_and_groups_are_where_kubernetes_reads_them(ca):
    subject = parsed(certificates.leaf(ca, user="system:node:n", groups=("system:nodes",), now=NOW)).subject
    assert [a.value for a in subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == ["system:node:n"]
    assert [a.value for a in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)] == ["system:nodes"]


def test_server_claims_the_names_and_addresses_given(ca):
    leaf = parsed(certificates.leaf(ca, user="s", names=("a.b",), addresses=("127.0.0.1",), now=NOW))
    alternatives = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert alternatives.get_values_for_type(x509.DNSName) == ["a.b"]
    assert alternatives.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address("127.0.0.1")]


def test_clocks_that_are_behind_as_far_as_is_allowed_do_not_invalidate(ca):
    leaf = parsed(certificates.leaf(ca, user="u", now=NOW))
    assert leaf.not_valid_before_utc == NOW - dt.timedelta(hours=1) < NOW - dt.timedelta(seconds=TOLERANCE_S)
    assert certificates.issued(ca.certificate) == NOW
    assert leaf.not_valid_after_utc == NOW + dt.timedelta(days=365)


def test_a_leaf_cannot_sign(ca):
    leaf = parsed(certificates.leaf(ca, user="u", now=NOW))
    assert leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False


def test_a_key_fits_its_own_certificate_alone(ca):
    leaf = certificates.leaf(ca, user="u", now=NOW)
    assert certificates.fits(leaf)
    for certificate, key in ((leaf.certificate, ca.key), (leaf.certificate, b""), (b"x", leaf.key)):
        assert not certificates.fits(KeyPair(certificate=certificate, key=key))
