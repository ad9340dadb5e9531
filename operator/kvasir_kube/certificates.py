"""Keys and certificates, as PEM bytes: of the operator's authority for replicas, and of the local cluster.

Pure but for the randomness of keys and the moment of issue, which is given. cryptography is imported where it is used:
the gateway has this package and not that one.
ECDSA P-256 everywhere: a key takes a tenth of a millisecond, an RSA one a tenth of a second.
"""

import datetime as dt
import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

LIFETIME: Final = dt.timedelta(days=365)
_BACKDATE: Final = dt.timedelta(hours=1)  # clocks of those who verify may be behind (`ops_tokens.TOLERANCE_S`)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes


def key_pair() -> tuple[bytes, bytes]:
    """A fresh private key and its public key, as PEM: what signs and checks service account tokens."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return _pem(key), public


def authority(name: str, *, now: dt.datetime, lifetime: dt.timedelta = LIFETIME) -> KeyPair:
    """A self-signed authority that may sign leaves only. now: timezone-aware."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    usage = _key_usage(key_cert_sign=True, crl_sign=True)
    certificate = (
        _builder(subject, subject, key.public_key(), (now, lifetime))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    return KeyPair(certificate=certificate.public_bytes(serialization.Encoding.PEM), key=_pem(key))


def leaf(
    issuer: KeyPair,
    *,
    user: str,
    groups: tuple[str, ...] = (),
    names: tuple[str, ...] = (),
    addresses: tuple[str, ...] = (),
    now: dt.datetime,
    lifetime: dt.timedelta = LIFETIME,
) -> KeyPair:
    """A certificate for both sides of TLS.

    user: the common name, which Kubernetes takes for the user; groups: the organisations, which it takes for groups.
    names, addresses: DNS names and IP addresses that a server may claim; a pure client gives none.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    ca = x509.load_pem_x509_certificate(issuer.certificate)
    ca_key = serialization.load_pem_private_key(issuer.key, password=None)
    if not isinstance(ca_key, ec.EllipticCurvePrivateKey):
        raise TypeError(f"the authority's key is a {type(ca_key).__name__}, expected an elliptic curve key")
    key = ec.generate_private_key(ec.SECP256R1())
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    subject = x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, user)])
    both_sides = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    builder = (
        _builder(subject, ca.subject, key.public_key(), (now, lifetime))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(digital_signature=True), critical=True)
        .add_extension(both_sides, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
    )
    alternatives: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
    alternatives += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
    if alternatives:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    certificate = builder.sign(ca_key, hashes.SHA256())
    return KeyPair(certificate=certificate.public_bytes(serialization.Encoding.PEM), key=_pem(key))


def issued(certificate: bytes) -> dt.datetime:
    """When a certificate was issued, as `now` was given. Raises ValueError for what is none."""
    from cryptography import x509

    return x509.load_pem_x509_certificate(certificate).not_valid_before_utc + _BACKDATE


def is_issued_by(certificate: bytes, issuer: bytes) -> bool:
    """Whether an authority has signed a certificate. Raises ValueError where either is none."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

    leaf_, ca = x509.load_pem_x509_certificate(certificate), x509.load_pem_x509_certificate(issuer)
    try:
        leaf_.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def fits(pair: KeyPair) -> bool:
    """Whether a key is that of its certificate. Not where either is none."""
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    try:
        public = x509.load_pem_x509_certificate(pair.certificate).public_key()
        return serialization.load_pem_private_key(pair.key, password=None).public_key() == public
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False


def _builder(
    subject: "x509.Name",
    issuer: "x509.Name",
    public_key: "ec.EllipticCurvePublicKey",
    valid: tuple[dt.datetime, dt.timedelta],
) -> "x509.CertificateBuilder":
    from cryptography import x509

    now, lifetime = valid
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATE)
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _key_usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> "x509.KeyUsage":
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: "ec.EllipticCurvePrivateKey") -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
