"""From Tenants, and what could be read of their Secrets, to the gateways' document and to the status of each Tenant.

Pure; called by `loop.tenant_publisher`. A namespace is closed, so that gateways require a key, where it has a Tenant
whose Secret the operator may look for; where it may read none, gateways leave the namespace to its replicas.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import msgspec
from pydantic import ValidationError

from kvasir_api import names, tenant_keys
from kvasir_api.tenant import TenantSpec
from kvasir_api.tenant_keys import KeyHash, TenantGrant, TenantKeys
from kvasir_kube.kinds import Json, Key, key

MOST_KEYS: Final = 1000
"""Of one tenant, those in their grace included."""
MOST_SECRETS: Final = 100
"""Read for one namespace: each is a request to the API server, again and again."""
MOST_SECRET_KEYS: Final = 10_000
"""Hashed of one Secret, whose entries may be those of several tenants."""
MOST_BYTES: Final = 1_000_000
"""Of the document: the API server takes a Secret of 1 MiB, which is some 17,000 keys."""

Reading = Literal["read", "missing", "unlabelled", "forbidden", "exceeding", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretReading:
    """One look for a Secret. unknown: the API server did not answer, so that what was published stays. exceeding: it
    was not read, since older tenants of the namespace have as many Secrets as it may have.

    entries: hashes of the keys of each entry, in the order of their lines. is_whole: of all keys that it has.
    """

    outcome: Reading
    entries: Mapping[str, tuple[bytes, ...]] = field(default_factory=dict)
    is_whole: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantFinding:
    """What the condition Ready of one Tenant says. keys: that gateways accept now."""

    tenant: Key
    keys: int
    reason: str
    message: str

    @property
    def ready(self) -> bool:
        """Whether gateways accept the tenant's keys."""
        return self.reason == "KeysPublished"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTenants:
    """The document, and a finding for each Tenant."""

    keys: TenantKeys
    findings: tuple[TenantFinding, ...]


@dataclass(slots=True)
class _Taken:
    """Keys that older tenants of a namespace have, each with the tenant's name."""

    by_digest: dict[bytes, str] = field(default_factory=dict)


def reading_of(contents: Mapping[str, bytes]) -> SecretReading:
    """Of a Secret by what its entries hold: one key a line, without blanks around it."""
    entries: dict[str, tuple[bytes, ...]] = {}
    left, is_whole = MOST_SECRET_KEYS, True
    for name, content in sorted(contents.items()):
        keys = dict.fromkeys(line.strip() for line in content.splitlines() if line.strip())
        entries[name] = tuple(map(tenant_keys.digest, list(keys)[:left]))
        is_whole = is_whole and len(keys) <= left
        left -= len(entries[name])
    return SecretReading(outcome="read", entries=entries, is_whole=is_whole)


def published(
    tenants: Iterable[Json], secrets: Mapping[Key, SecretReading], before: TenantKeys, now: float
) -> PublishedTenants:
    """secrets: by namespace and name. before: what gateways have now. now: seconds since the epoch."""
    by_namespace: dict[str, list[Json]] = {}
    for tenant in sorted(tenants, key=_age):
        by_namespace.setdefault(key(tenant)[0], []).append(tenant)
    former = {(grant.namespace, grant.name): grant for grant in before.tenants}
    findings: list[TenantFinding] = []
    closed: list[PublishedTenants] = []
    for found in by_namespace.values():
        made = _of_namespace(found, secrets, former, now)
        if any(finding.reason != "KeysUnread" for finding in made.findings):
            closed.append(made)
        else:
            findings += made.findings
    most = _most_bytes([_num_bytes(made.keys.tenants) for made in closed])
    bounded = [_within(most, made) for made in closed]
    findings += (finding for made in bounded for finding in made.findings)
    grants = sorted((grant for made in bounded for grant in made.keys.tenants), key=lambda grant: grant.id)
    return PublishedTenants(keys=TenantKeys(tenants=tuple(grants)), findings=tuple(findings))


def unpublished(made: PublishedTenants, before: TenantKeys, why: str) -> tuple[TenantFinding, ...]:
    """Findings where the document could not be written. before: what gateways have, and keep."""
    former, wanted = ({(g.namespace, g.name): g for g in keys.tenants} for keys in (before, made.keys))
    return tuple(
        finding
        if finding.tenant in former and former[finding.tenant] == wanted.get(finding.tenant)
        else replace(
            finding,
            keys=len(former[finding.tenant].keys) if finding.tenant in former else 0,
            reason="KeysUnpublished",
            message=f"gateways keep what they had of this tenant: {why}",
        )
        for finding in made.findings
    )


def secrets_of(tenants: Iterable[Json]) -> dict[Key, bool]:
    """The Secrets that Tenants name, and whether each is read: of a namespace those of the oldest tenants are."""
    found: dict[Key, bool] = {}
    counts: dict[str, int] = {}
    for tenant in sorted(tenants, key=_age):
        namespace, name = key(tenant)[0], str((tenant.get("spec") or {}).get("secretName") or "")
        if name and (namespace, name) not in found:
            counts[namespace] = counts.get(namespace, 0) + 1
            found[namespace, name] = counts[namespace] <= MOST_SECRETS
    return found


def _num_bytes(grants: Iterable[TenantGrant]) -> int:
    return sum(len(msgspec.json.encode(grant)) + 1 for grant in grants)


def _most_bytes(sizes: Iterable[int]) -> int:
    """That one namespace may have, so that all fit and none has less than an equal share unless it needs less."""
    left = MOST_BYTES
    ordered = sorted(sizes)
    for number, size in enumerate(ordered):
        share = left // (len(ordered) - number)
        if size > share:
            return share
        left -= size
    return MOST_BYTES


def _within(most: int, made: PublishedTenants) -> PublishedTenants:
    """The oldest tenants of a namespace, in so many bytes. Without any the namespace is still closed."""
    kept: list[TenantGrant] = []
    findings: list[TenantFinding] = []
    for grant, finding in zip(made.keys.tenants, made.findings, strict=True):
        if _num_bytes((grant,)) <= most:
            most -= _num_bytes((grant,))
            kept.append(grant)
            findings.append(finding)
            continue
        message = "left out: older tenants of the namespace take its share of what gateways can be given"
        findings.append(replace(finding, keys=0, reason="KeysExceeded", message=message))
    first = made.keys.tenants[0]
    closing = kept or [TenantGrant(namespace=first.namespace, name=first.name)]
    return PublishedTenants(keys=TenantKeys(tenants=tuple(closing)), findings=tuple(findings))


def _age(tenant: Json) -> tuple[str, Key]:
    return str((tenant.get("metadata") or {}).get("creationTimestamp") or ""), key(tenant)


def _of_namespace(
    tenants: Iterable[Json], secrets: Mapping[Key, SecretReading], former: Mapping[Key, TenantGrant], now: float
) -> PublishedTenants:
    """tenants: oldest first, which has a key that two of them list."""
    taken = _Taken()
    grants, findings = [], []
    for tenant in tenants:
        name = key(tenant)
        try:
            spec = TenantSpec.model_validate(tenant.get("spec") or {})
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(("spec", *map(str, first["loc"])))
            grants.append(TenantGrant(namespace=name[0], name=name[1]))
            findings.append(
                TenantFinding(tenant=name, keys=0, reason="InvalidSpec", message=f"{where}: {first['msg']}")
            )
            continue
        reading = secrets.get((name[0], spec.secret_name), SecretReading(outcome="unknown"))
        keys, shared = _keys(spec, reading, former.get(name), taken, now)
        num_over, keys = max(0, len(keys) - MOST_KEYS), keys[:MOST_KEYS]
        taken.by_digest |= {one.sha256: name[1] for one in keys}
        grants.append(_grant(name, spec, keys))
        finding = _finding(name, spec, reading, former.get(name), keys, shared)
        findings.append(_exceeding(finding, reading, num_over) if finding.ready else finding)
    return PublishedTenants(keys=TenantKeys(tenants=tuple(grants)), findings=tuple(findings))


def _keys(
    spec: TenantSpec, reading: SecretReading, former: TenantGrant | None, taken: _Taken, now: float
) -> tuple[tuple[KeyHash, ...], str]:
    """The keys that count, those in their grace behind the others, and the name of another tenant that has one too."""
    before = former.keys if former else ()
    if reading.outcome == "unknown":
        return tuple(one for one in before if one.valid(now)), ""
    listed = [d for name, found in reading.entries.items() if spec.entry in ("", name) for d in found]
    others = [taken.by_digest[d] for d in listed if d in taken.by_digest]
    own = dict.fromkeys(d for d in listed if d not in taken.by_digest)
    last = now + spec.grace_seconds
    leaving = [
        KeyHash(sha256=one.sha256, until=min(one.until, last) if one.until else last)
        for one in before
        if one.sha256 not in own and one.sha256 not in taken.by_digest
    ]
    kept = [one for one in leaving if one.valid(now)]
    return (*(KeyHash(sha256=d) for d in own), *kept), next(iter(others), "")


def _grant(name: Key, spec: TenantSpec, keys: tuple[KeyHash, ...]) -> TenantGrant:
    return TenantGrant(
        namespace=name[0],
        name=name[1],
        keys=keys,
        services=tuple(spec.services),
        requests_per_minute=spec.limits.requests_per_minute,
        tokens_per_minute=spec.limits.tokens_per_minute,
        concurrent_requests=spec.limits.concurrent_requests,
        priority=spec.priority,
        weight=spec.weight,
    )


def _finding(
    name: Key,
    spec: TenantSpec,
    reading: SecretReading,
    former: TenantGrant | None,
    keys: tuple[KeyHash, ...],
    shared: str,
) -> TenantFinding:
    secret, live = f"Secret {spec.secret_name} of spec.secretName", sum(1 for one in keys if not one.until)
    reason, message = "KeysPublished", f"gateways accept {len(keys)} keys"
    if shared:
        message += f"; a key that Tenant {shared} lists too is the key of that one"
    match reading.outcome:
        case "unknown" if former is None:
            reason, message = "KeysUnread", f"{secret} could not be read yet"
        case "forbidden":
            reason = "KeysUnread"
            message = (
                f"{secret} cannot be read: bind the ClusterRole {names.TENANT_KEYS_ROLE} to the operator's "
                "ServiceAccount in this namespace"
            )
        case "exceeding":
            reason = "KeysExceeded"
            message = f"{secret} is not read: older tenants of the namespace name {MOST_SECRETS} others"
        case "missing":
            reason, message = "KeysMissing", f"{secret} does not exist"
        case "unlabelled":
            reason, message = "KeysMissing", f'{secret} lacks the label {names.LABEL_TENANT_KEYS}: "true"'
        case "read" if not live:
            where = f"entry {spec.entry} of {secret}" if spec.entry else secret
            reason, message = "KeysMissing", f"{where} holds no key"
            if shared:
                message += f" that Tenant {shared} does not list"
    return TenantFinding(tenant=name, keys=len(keys), reason=reason, message=message)


def _exceeding(finding: TenantFinding, reading: SecretReading, num_over: int) -> TenantFinding:
    """num_over: keys beyond those that a tenant may have, of which those in their grace are left out first."""
    why = f"{num_over} more are left out, since a tenant may have {MOST_KEYS}, those in their grace included"
    if not reading.is_whole:
        why = f"more may be left out, since its Secret has more than the {MOST_SECRET_KEYS} that are read of one"
    elif not num_over:
        return finding
    return replace(finding, reason="KeysExceeded", message=f"{finding.message}; {why}")
