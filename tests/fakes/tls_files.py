"""Certificates as pods and gateways have them: files that are replaced as the kubelet replaces those of a Secret."""

import datetime as dt
import ssl
from pathlib import Path

from kvasir_kube import certificates
from kvasir_kube.certificates import KeyPair


def authority(name: str = "test") -> KeyPair:
    """One of a test."""
    return certificates.authority(name, now=dt.datetime.now(dt.UTC))


def issued(
    by: KeyPair, directory: Path, *, names: tuple[str, ...] = (), addresses: tuple[str, ...] = ("127.0.0.1",)
) -> KeyPair:
    """A new certificate in the directory, with its authority."""
    pair = certificates.leaf(by, user="test", names=names, addresses=addresses, now=dt.datetime.now(dt.UTC))
    directory.mkdir(parents=True, exist_ok=True)
    content = directory / f"..{len(list(directory.iterdir()))}"
    content.mkdir()
    found = {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": by.certificate}
    for name, text in found.items():
        (content / name).write_bytes(text)
    (directory / "..next").symlink_to(content.name)
    (directory / "..next").replace(directory / "..data")
    for name in found:
        if not (directory / name).is_symlink():
            (directory / name).symlink_to(f"..data/{name}")
    return pair


def server_side(directory: Path) -> ssl.SSLContext:
    """What a server of the certificate in a directory speaks."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "tls.crt", directory / "tls.key")
    return context


def binary(pair: KeyPair) -> bytes:
    """The certificate as it is sent."""
    return ssl.PEM_cert_to_DER_cert(pair.certificate.decode())
