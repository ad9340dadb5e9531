"""From a request's key and headers to its sender: tenant, salt, weight, priority and objective. Refuses bad headers."""

import re
from collections.abc import Mapping
from typing import Final

from starlette.requests import Request

from kvasir_api import hashes, names, openai_errors, tenants
from kvasir_api.options import ServeOptions
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.protocol.generation import MAX_PRIORITY
from kvasir_runtime.frontend.sender import RequestSender
from kvasir_runtime.server.auth import ApiKeys, KeyNames

_KV_PEER: Final = re.compile(
    r"(?P<peer>(\d{1,3}(\.\d{1,3}){3}|\[[0-9A-Fa-f:.]+\]):\d{1,5});(bytes=(?P<bytes>\d{1,10})|prefill)"
)


class Senders:
    """keys: of which each is a tenant. options: of tenants, and what they share."""

    def __init__(self, options: ServeOptions, keys: ApiKeys) -> None:
        self._keys, self._header = keys, options.tenant_header.lower()
        self._most_urgent = options.most_urgent_priority
        self._shared = options.shared_prefix_cache
        self._ttft_s = options.ttft_milliseconds / 1000
        self._kv_port = options.kv_transfer_port
        self._weights: Mapping[str, float] = tenants.weights(options.tenant_weights)

    def of(self, request: Request) -> RequestSender:
        """Raises Refused for a header that is no name or no number."""
        tenant, salt = self._tenant(request)
        peer, peer_bytes = _kv_peer(request, self._kv_port) if self._kv_port >= 0 else ("", 0)
        of_file = self._weights.get(tenant.file, 1.0)
        return RequestSender(
            tenant=tenant.shown,
            salt=b"" if self._shared else salt,
            identity=salt,
            weight=self._weights.get(tenant.own, of_file),
            priority=_priority(request),
            most_urgent=self._most_urgent if self._header or self._keys.several else -MAX_PRIORITY,
            ttft_s=_ttft_s(request) or self._ttft_s,
            kv_peer=peer,
            kv_peer_bytes=peer_bytes or 0,
            kv_peer_computes=peer_bytes is None,
        )

    @property
    def salted_by(self) -> tuple[bool, str]:
        """Whether salts of caches follow from keys, and from which header; (False, "") where tenants share them."""
        return (False, "") if self._shared else (not self._keys.accepts(()), self._header)

    def identity(self, request: Request) -> bytes:
        """That of the request's sender. Raises Refused for a header that is no name."""
        return self._tenant(request)[1]

    def owners(self, tenant: str) -> list[bytes]:
        """How blocks of a tenant are marked; none for a tenant that is not known, or where tenants share them."""
        if self._shared:
            return []
        salts = [tenants.salt_of_key_digest(digest) for digest in self._keys.digests(tenant)]
        if self._header and tenants.NAME.fullmatch(tenant):
            salts.append(tenants.salt_of_name(tenant))
        return [hashes.owner_of_salt(salt) for salt in salts]

    def names(self, tenant: str) -> set[str]:
        """What tenants are called that are meant by a name: its own, and of keys those of their file."""
        return {tenant, *self._keys.shown(tenant)} if tenant else set()

    def _tenant(self, request: Request) -> tuple[KeyNames, bytes]:
        """Names and salt. The header counts where it is trusted and there, else the accepted key."""
        name = (_single(request, self._header) or "") if self._header else ""
        if name:
            if not tenants.NAME.fullmatch(name):
                raise _refused(self._header, f"a name that matches {tenants.NAME.pattern}")
            return KeyNames.alike(name), tenants.salt_of_name(name)
        key = str(request.scope["state"].get("client", "")).encode("latin-1")
        return self._keys.tenant(key), tenants.salt_of_key(key) if key else b""


def _priority(request: Request) -> int | None:
    value = _single(request, names.HEADER_PRIORITY)
    if value is None:
        return None
    try:
        priority = int(value)
    except ValueError:
        priority = MAX_PRIORITY + 1
    if abs(priority) > MAX_PRIORITY:
        raise _refused(names.HEADER_PRIORITY, f"an integer from -{MAX_PRIORITY} to {MAX_PRIORITY}")
    return priority


def _ttft_s(request: Request) -> float:
    value = _single(request, names.HEADER_TTFT)
    if value is None:
        return 0.0
    try:
        ttft_ms = float(value)
    except ValueError:
        ttft_ms = -1.0
    if not 0 < ttft_ms <= names.MAX_TTFT_MS:
        raise _refused(names.HEADER_TTFT, f"milliseconds above 0, at most {names.MAX_TTFT_MS:.0f}")
    return ttft_ms / 1000


def _kv_peer(request: Request, own_port: int) -> tuple[str, int | None]:
    """Where blocks are, and of how much of the text; None where they are to be computed there first.

    Replicas of a service have the same port, unless each takes a free one (0): so that no caller has this one connect
    to other programs' ports.
    """
    value = _single(request, names.HEADER_KV_PEER)
    if value is None:
        return "", 0
    found = _KV_PEER.fullmatch(value)
    if found is None:
        raise _refused(names.HEADER_KV_PEER, "an IP address and a port, and ;bytes= with a number or ;prefill")
    port = int(found["peer"].rpartition(":")[2])
    num_bytes = None if found["bytes"] is None else int(found["bytes"])
    return (found["peer"], num_bytes) if own_port in (0, port) else ("", 0)


def _single(request: Request, header: str) -> str | None:
    """The value of a header, None without it.

    A second one is refused: a proxy may have added its own behind a client's, and other servers may read the other one.
    """
    values = request.headers.getlist(header)
    if len(values) > 1:
        raise _refused(header, "one value and occurs once")
    return values[0] if values else None


def _refused(header: str, expected: str) -> Refused:
    return Refused(openai_errors.invalid(f"The header {header} takes {expected}.", param=header, code="invalid_header"))
