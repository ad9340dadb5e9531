"""The operator's authority for pods that speak TLS, and the Secret with the certificate that pods of a namespace share.

A namespace is the border: who may create pods in it can mount every Secret of it, so that a certificate for each
service would separate nothing. Its names are those of all Services of the namespace. Pure: the time is given.
"""

import zlib
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from kvasir_api import names, served_names
from kvasir_kube.kinds import Json
from kvasir_operator.desired.namespace_secret import namespace_secret
from kvasir_operator.desired.signing_keys import is_ahead, is_due, signing, trusted

DAY_S: Final = 86_400.0
AUTHORITY_S: Final = 730 * DAY_S
AUTHORITY_ROTATED_S: Final = 365 * DAY_S
CERTIFICATE_S: Final = 90 * DAY_S
RENEWED_AFTER_S: Final = 30 * DAY_S
"""Long before a certificate ends: an operator that is away for weeks stops no request."""
RENEWALS_SPREAD_S: Final = 5 * DAY_S
"""By so much some namespaces are earlier than others, so that one day does not renew them all."""


class PodAuthority(msgspec.Struct, frozen=True):
    """certificate, private_key: PEM. created: seconds since the epoch."""

    certificate: str
    private_key: str
    created: float


def kept(authorities: Sequence[PodAuthority], now: float) -> tuple[PodAuthority, ...]:
    """Those whose certificates pods may have, in the order of their making, here and below."""
    valid = [one for one in authorities if now < one.created + AUTHORITY_S]
    return trusted(valid, now, kept_s=CERTIFICATE_S)


def is_authority_due(authorities: Sequence[PodAuthority], now: float) -> bool:
    """Whether another authority is to be made. It signs nothing before all have read its certificate."""
    return is_due(authorities, now, after_s=AUTHORITY_ROTATED_S)


def issuer(authorities: Sequence[PodAuthority], now: float) -> PodAuthority | None:
    """The one that signs now, None while there is none. One of the future, which is not valid yet, only where there is
    no other."""
    return signing([one for one in authorities if not is_ahead(one.created, now)] or authorities, now)


def is_certificate_due(namespace: str, issued_at: float, now: float) -> bool:
    """Whether a namespace is to have another certificate: by its age, or because a clock that was ahead issued it."""
    return now - issued_at >= RENEWED_AFTER_S - spread(namespace) * RENEWALS_SPREAD_S or is_ahead(issued_at, now)


def spread(namespace: str) -> float:
    """Of a namespace, 0..1 and always the same: its part of a time over which all are spread."""
    return zlib.crc32(namespace.encode()) / 2**32


def bundle(authorities: Sequence[PodAuthority]) -> str:
    """What pods are verified by."""
    return "".join(one.certificate for one in authorities)


def dns_names(namespace: str) -> tuple[str, ...]:
    """Of the certificate of a namespace: any Service of it. Names of Services have no dots, as a wildcard needs it."""
    return (served_names.dns_name(namespace, "*"),)


def pod_secret(namespace: str, owners: Sequence[Json], content: Mapping[str, bytes]) -> Json:
    """The Secret of a namespace. owners: all services there, with the last of which it goes. content: by entry."""
    return namespace_secret(namespace, names.POD_TLS_SECRET, owners, content, kind="kubernetes.io/tls")
