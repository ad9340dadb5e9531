"""Keeps the authority by which pods that speak TLS are verified, and the certificates that it signs for them.

The authority's key is in the Secret of the operator's own namespace that has its signing keys. Its certificates go to
the gateways, in the Secret that they read anyway, and to each namespace with such pods, beside the certificate of
these. Only the leader runs this. No key is in a log.
"""

import asyncio
import base64
import datetime as dt
import logging
from dataclasses import dataclass
from typing import Final

import msgspec

from kvasir_api import names
from kvasir_kube import certificates
from kvasir_kube.certificates import KeyPair
from kvasir_kube.cluster import Cluster
from kvasir_kube.errors import KubeError, NotFoundError
from kvasir_kube.kinds import DEPLOYMENT, INFERENCE_SERVICE, SECRET, Json, key, uid
from kvasir_kube.pod_tls import PodTls
from kvasir_operator.desired import pod_certificates as rules
from kvasir_operator.desired.namespace_secret import has_content
from kvasir_operator.desired.pod_certificates import PodAuthority
from kvasir_operator.desired.template import speaks_tls
from kvasir_operator.loop.clock import Clock
from kvasir_operator.loop.own_secret import own_secret
from kvasir_operator.loop.store import Store

LOG: Final = logging.getLogger(__name__)
LOOK_EVERY_S: Final = 60.0
READ_EVERY_S: Final = 300.0
"""So long may the Secret of a namespace lack what another client took out of it."""
RETRY_S: Final = 10.0
ENTRY: Final = "pod-authorities"
"""Of the operator's own Secret."""
CONTENT: Final = (names.TLS_CERTIFICATE, names.TLS_KEY, names.TLS_CA)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SecretRead:
    """When the Secret of a namespace was right. owners: uids of its services. authorities: those known then. issuer:
    which of them signed. issued_at: epoch seconds. turn: number of the time in which each is read once."""

    owners: frozenset[str]
    authorities: tuple[PodAuthority, ...]
    issuer: PodAuthority
    issued_at: float
    turn: int


class PodCertificates:
    """tls: verifies pods by the authority. home: the operator's own namespace."""

    def __init__(self, cluster: Cluster, store: Store, tls: PodTls, *, home: str, clock: Clock) -> None:
        self._cluster, self._store, self._tls, self._home, self._clock = cluster, store, tls, home, clock
        self._authorities: tuple[PodAuthority, ...] = ()
        self._read: dict[str, _SecretRead] = {}
        self._lock = asyncio.Lock()

    async def prepare(self) -> None:
        """Know the authority that there is, so that pods can be read; what fails is logged, and done again by `run`."""
        try:
            async with self._lock:
                await self._refresh(is_used=False)
        except KubeError as error:
            LOG.warning("pods that speak TLS cannot be verified now: %s", error)

    async def ensure(self, namespace: str) -> None:
        """Pods of this namespace have a certificate that is good for long. Raises KubeError."""
        async with self._lock:
            if not self._authorities:
                await self._refresh(is_used=True)
            await self._write(namespace, self._owners().get(namespace, []))

    async def refresh(self) -> dict[str, str]:
        """Renew what is due: authority and certificates, of pods that speak TLS. Raises KubeError where that fails for
        the authority; returns by namespace why it failed for this one alone."""
        workloads = self._store.all(DEPLOYMENT)
        namespaces = {key(one)[0] for one in workloads if speaks_tls(one["spec"].get("template") or {})}
        failed: dict[str, str] = {}
        async with self._lock:
            await self._refresh(is_used=bool(namespaces))
            owners = self._owners()
            for namespace in sorted(namespaces & owners.keys()):
                if self._is_right(namespace, owners[namespace]):
                    continue
                try:
                    await self._write(namespace, owners[namespace])
                except KubeError as error:
                    failed[namespace] = str(error)
        self._read = {namespace: last for namespace, last in self._read.items() if namespace in namespaces}
        return failed

    async def run(self) -> None:
        """Renew until cancelled."""
        trouble: dict[str, str] = {}
        while True:
            before = trouble
            try:
                trouble, pause_s = await self.refresh(), LOOK_EVERY_S
            except KubeError as error:
                trouble, pause_s = {"": str(error)}, RETRY_S
            for namespace in [one for one, why in trouble.items() if why != before.get(one)]:
                whose = f" of namespace {namespace}" if namespace else ""
                LOG.warning("certificates of pods%s cannot be renewed now: %s", whose, trouble[namespace])
            await asyncio.sleep(pause_s)

    async def _refresh(self, *, is_used: bool) -> None:
        """Read the authority, and make another where one is due. is_used: else none is made."""
        found = await self._cluster.get(SECRET, self._home, names.SIGNING_SECRET)
        now, before = self._clock.wall(), _decoded(found)
        authorities = rules.kept(before, now)
        if is_used and rules.is_authority_due(authorities, now):
            authorities = (*authorities, _made(now))
        if authorities != before:
            # The version: another operator, or what writes the signing keys, may have been quicker.
            patch = {
                "metadata": {"resourceVersion": found["metadata"]["resourceVersion"]},
                "data": {ENTRY: _coded(authorities)},
            }
            await self._cluster.merge(SECRET, self._home, names.SIGNING_SECRET, patch, manager=names.MANAGER)
            LOG.info("pods are verified by %d authorities", len(authorities))
        await self._publish(rules.bundle(authorities))
        self._authorities = authorities

    async def _publish(self, bundle: str) -> None:
        """To gateways, and to what reads pods here."""
        if not bundle:
            return
        text = base64.b64encode(bundle.encode()).decode()
        try:
            found = await self._cluster.get(SECRET, self._home, names.GATEWAY_KEYS_SECRET)
            if (found.get("data") or {}).get(names.POD_CA_ENTRY) != text:
                patch: Json = {"data": {names.POD_CA_ENTRY: text}}
                await self._cluster.merge(SECRET, self._home, names.GATEWAY_KEYS_SECRET, patch, manager=names.MANAGER)
        except NotFoundError:
            LOG.debug("there is no gateway to verify pods")
        self._tls.trust(bundle)

    def _owners(self) -> dict[str, list[Json]]:
        """All services by namespace."""
        found: dict[str, list[Json]] = {}
        for service in self._store.all(INFERENCE_SERVICE):
            found.setdefault(key(service)[0], []).append(service)
        return found

    def _is_right(self, namespace: str, owners: list[Json]) -> bool:
        """Whether the Secret of a namespace was right a short time ago, for these services."""
        last, now = self._read.get(namespace), self._clock.wall()
        return (
            last is not None
            and last.turn == self._turn(namespace)
            and last.owners == frozenset(map(uid, owners))
            and last.authorities == self._authorities
            and last.issuer == rules.issuer(self._authorities, now)
            and not rules.is_certificate_due(namespace, last.issued_at, now)
        )

    def _turn(self, namespace: str) -> int:
        return int(self._clock.steady() / READ_EVERY_S + rules.spread(namespace))

    async def _write(self, namespace: str, owners: list[Json]) -> None:
        """Read the Secret of a namespace, and apply it where it is not as it should be. Raises ConflictError where it
        is not the operator's."""
        now = self._clock.wall()
        issuer = rules.issuer(self._authorities, now)
        if issuer is None or not owners:
            return
        found = await own_secret(self._cluster, namespace, names.POD_TLS_SECRET, "for pods that speak TLS")
        pair, issued_at = _certificate(found, issuer)
        if pair is None or rules.is_certificate_due(namespace, issued_at, now):
            pair, issued_at = _issued(issuer, namespace, now), now
            LOG.info("new certificate for the pods of namespace %s", namespace)
        parts = (pair.certificate, pair.key, rules.bundle(self._authorities).encode())
        secret = rules.pod_secret(namespace, owners, dict(zip(CONTENT, parts, strict=True)))
        if not has_content(found, secret):
            await self._cluster.apply(SECRET, secret, manager=names.MANAGER)
        self._read[namespace] = _SecretRead(
            owners=frozenset(map(uid, owners)),
            authorities=self._authorities,
            issuer=issuer,
            issued_at=issued_at,
            turn=self._turn(namespace),
        )


def _certificate(found: Json, issuer: PodAuthority) -> tuple[KeyPair | None, float]:
    """The certificate in a Secret, and when it was issued; None where it is missing, spoilt, or not of the authority
    that signs now."""
    try:
        certificate, private = (base64.b64decode((found.get("data") or {}).get(entry) or "") for entry in CONTENT[:2])
        pair = KeyPair(certificate=certificate, key=private)
        if not certificates.is_issued_by(certificate, issuer.certificate.encode()) or not certificates.fits(pair):
            return None, 0.0
        return pair, certificates.issued(certificate).timestamp()
    except ValueError:  # which binascii.Error is
        return None, 0.0


def _made(now: float) -> PodAuthority:
    when = dt.datetime.fromtimestamp(now, dt.UTC)
    pair = certificates.authority(
        f"Kvasir pods {when:%Y-%m-%dT%H:%M:%SZ}", now=when, lifetime=dt.timedelta(seconds=rules.AUTHORITY_S)
    )
    return PodAuthority(certificate=pair.certificate.decode(), private_key=pair.key.decode(), created=now)


def _issued(issuer: PodAuthority, namespace: str, now: float) -> KeyPair:
    return certificates.leaf(
        KeyPair(certificate=issuer.certificate.encode(), key=issuer.private_key.encode()),
        user=f"pods of {namespace}"[:64],
        names=rules.dns_names(namespace),
        now=dt.datetime.fromtimestamp(now, dt.UTC),
        lifetime=dt.timedelta(seconds=rules.CERTIFICATE_S),
    )


def _coded(authorities: tuple[PodAuthority, ...]) -> str:
    return base64.b64encode(msgspec.json.encode(authorities)).decode()


def _decoded(found: Json) -> tuple[PodAuthority, ...]:
    """None of a Secret that has none, and of one that no operator wrote: nothing else cures that."""
    text = (found.get("data") or {}).get(ENTRY, "")
    if not text:
        return ()
    try:
        known = msgspec.json.decode(base64.b64decode(text), type=tuple[PodAuthority, ...])
        for one in known:
            certificates.issued(one.certificate.encode())
    except (msgspec.MsgspecError, ValueError):  # without its words, which may have a part of a key
        LOG.warning("Secret %s holds no authority of an operator: a new one replaces it", names.SIGNING_SECRET)
        return ()
    return known
