"""How pods that speak TLS are reached and verified; used by the operator and the endpoint picker.

The base URL of such a pod is https://ADDRESS:PORT#NAME: the fragment, which is never sent, is the name that its
certificate must have. Only certificates of the operator's authority count, never those of the system's.
"""

import ssl
from urllib.parse import urldefrag

from kvasir_api import names, served_names
from kvasir_kube.kinds import Json


class PodTls:
    """authority: PEM certificates of the operator's authority; empty before they are known, when no pod that speaks TLS
    is reached."""

    def __init__(self) -> None:
        self.authority = ""
        self.context: ssl.SSLContext | None = None

    def trust(self, authority: str) -> bool:
        """Verify by these certificates from now on, new connections alone. Returns whether they are others than before.
        Raises ValueError where they are none."""
        if authority == self.authority:
            return False
        try:
            self.context = ssl.create_default_context(cadata=authority) if authority else None
        except ssl.SSLError as error:
            raise ValueError(f"no certificates of an authority: {error}") from error
        self.authority = authority
        return True


def server_name(pod: Json) -> str:
    """The name that the certificate of a replica must have; empty where it speaks no TLS."""
    metadata = pod.get("metadata") or {}
    if (metadata.get("annotations") or {}).get(names.ANNOTATION_TLS) != "true":
        return ""
    service = (metadata.get("labels") or {}).get(names.LABEL_SERVICE, "")
    return served_names.dns_name(str(metadata.get("namespace") or ""), str(service))


def base_url(ip: str, port: int, server_name_: str) -> str:
    """Base URL of a pod's port. server_name_: as `server_name` returns it."""
    host = f"[{ip}]" if ":" in ip else ip
    return f"https://{host}:{port}#{server_name_}" if server_name_ else f"http://{host}:{port}"


def plain(url: str) -> str:
    """A base URL without the name."""
    return urldefrag(url).url
