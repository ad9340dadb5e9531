"""Follows Tenants and their Secrets, and writes the one Secret of hashes that gateways read.

The operator may read Secrets only where the owner of a namespace has bound its Role, each by its name: it lists none. A
key is in memory while it is hashed, and in no log. Only the leader runs this.
"""

import asyncio
import base64
import binascii
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from kvasir_api import names, tenant_keys
from kvasir_api.tenant_keys import TenantKeys
from kvasir_kube.cluster import Cluster
from kvasir_kube.errors import ConflictError, KubeError, NotFoundError
from kvasir_kube.kinds import SECRET, TENANT, Json, Key, key, labels
from kvasir_operator.desired.tenant_keys import (
    PublishedTenants,
    SecretReading,
    TenantFinding,
    published,
    reading_of,
    secrets_of,
    unpublished,
)
from kvasir_operator.loop.clock import Clock, rfc3339
from kvasir_operator.observed.settings import OperatorSettings

LOG: Final = logging.getLogger(__name__)
LEAST_PERIOD_S: Final = 3.0
"""With the 3 seconds of the gateways a change counts after 6."""
SECRETS_PER_S: Final = 10
"""Read at most, so that 600 of them take a minute."""
REPORTS: Final = 50
"""Statuses written of one namespace in a round, so that the keys of all do not wait for them."""
DENIALS: Final = 3
"""Refusals in a row after which a right counts as withdrawn: an API server that has just started refuses too."""


class TenantPublisher:
    """settings: which namespace's Tenants, and where the gateways' Secret is."""

    def __init__(self, cluster: Cluster, settings: OperatorSettings, clock: Clock) -> None:
        self._cluster, self._clock = cluster, clock
        self._namespace, self._home = settings.namespace, settings.system_namespace
        self._denials: Counter[Key] = Counter()

    async def refresh(self) -> int:
        """Read Tenants and Secrets, and write what differs, also for no Tenant: by that gateways know that there is
        none. Returns how many Secrets were read. Raises KubeError where gateways cannot get what is new."""
        tenants = (await self._cluster.list(TENANT, self._namespace)).items
        target = await self._target(tenants)
        if target is None:
            return 0
        known = _decoded(target)
        before = known or TenantKeys()
        secrets = {
            name: await self._read(name) if is_read else SecretReading(outcome="exceeding")
            for name, is_read in secrets_of(tenants).items()
        }
        self._denials = Counter({name: count for name, count in self._denials.items() if name in secrets})
        made = published(tenants, secrets, before, self._clock.wall())
        findings, trouble = made.findings, None
        if made.keys != known:
            try:
                await self._write(target, made)
            except ConflictError:
                raise  # another operator's, which reports what it wrote
            except KubeError as error:
                findings, trouble = unpublished(made, before, str(error)), error
        await self._report_all(tenants, findings)
        if trouble is not None:
            raise trouble
        return sum(secret.outcome != "exceeding" for secret in secrets.values())

    async def run(self) -> None:
        """Publish until cancelled."""
        trouble, num_secrets = "", 0
        while True:
            try:
                num_secrets = await self.refresh()
                trouble = ""
            except KubeError as error:
                if str(error) != trouble:
                    LOG.warning("tenants cannot be published, gateways keep what they have: %s", error)
                trouble = str(error)
            await asyncio.sleep(max(LEAST_PERIOD_S, num_secrets / SECRETS_PER_S))

    async def _target(self, tenants: Sequence[Json]) -> Json | None:
        """The gateways' Secret; None where there is none and no tenant needs it."""
        try:
            return await self._cluster.get(SECRET, self._home, names.GATEWAY_KEYS_SECRET)
        except NotFoundError as error:
            if not tenants:
                return None
            why = f"gateways have no keys: {error}, of namespace {self._home}"
            missing = (TenantFinding(tenant=key(t), keys=0, reason="KeysUnpublished", message=why) for t in tenants)
            await self._report_all(tenants, missing)
            raise

    async def _read(self, name: Key) -> SecretReading:
        try:
            secret = await self._cluster.get(SECRET, *name)
        except NotFoundError:
            return SecretReading(outcome="missing")
        except KubeError as error:
            if error.status != 403:
                LOG.info("Secret %s/%s cannot be read now: %s", *name, error)
                return SecretReading(outcome="unknown")
            self._denials[name] += 1
            return SecretReading(outcome="forbidden" if self._denials[name] >= DENIALS else "unknown")
        del self._denials[name]
        if labels(secret).get(names.LABEL_TENANT_KEYS) != "true":
            return SecretReading(outcome="unlabelled")
        return reading_of({entry: _bytes(text) for entry, text in (secret.get("data") or {}).items()})

    async def _write(self, target: Json, made: PublishedTenants) -> None:
        document = base64.b64encode(tenant_keys.encode(made.keys)).decode()
        version = target["metadata"]["resourceVersion"]  # another one may have been quicker
        patch: Json = {"metadata": {"resourceVersion": version}, "data": {tenant_keys.ENTRY: document}}
        await self._cluster.merge(SECRET, self._home, names.GATEWAY_KEYS_SECRET, patch, manager=names.MANAGER)
        LOG.info("gateways get the keys of %d tenants", len(made.keys.tenants))

    async def _report_all(self, tenants: Iterable[Json], findings: Iterable[TenantFinding]) -> None:
        """Write the statuses that changed; those that cannot be written now are tried in the next round."""
        found = {finding.tenant: finding for finding in findings}
        written: Counter[str] = Counter()
        for tenant in tenants:
            patch = self._status(tenant, found[key(tenant)])
            namespace, name = key(tenant)
            if patch is None or written[namespace] >= REPORTS:
                continue
            written[namespace] += 1
            try:
                await self._cluster.merge(
                    TENANT, namespace, name, patch, manager=names.STATUS_MANAGER, subresource="status"
                )
            except (NotFoundError, ConflictError):
                LOG.debug("Tenant %s/%s is gone, or another one than was read", namespace, name)
            except KubeError as error:
                LOG.warning("the status of Tenant %s/%s cannot be written now: %s", namespace, name, error)

    def _status(self, tenant: Json, finding: TenantFinding) -> Json | None:
        """What to write; None where it is there already."""
        status = tenant.get("status") or {}
        ready: Json = next((c for c in status.get("conditions") or () if c.get("type") == names.CONDITION_READY), {})
        word = "True" if finding.ready else "False"
        condition = {
            "type": names.CONDITION_READY,
            "status": word,
            "reason": finding.reason,
            "message": finding.message,
            "lastTransitionTime": ready.get("lastTransitionTime")
            if ready.get("status") == word
            else rfc3339(self._clock.wall()),
            "observedGeneration": tenant["metadata"].get("generation") or 0,
        }
        if condition == ready and status.get("keys") == finding.keys:
            return None
        version = tenant["metadata"]["resourceVersion"]
        return {"metadata": {"resourceVersion": version}, "status": {"keys": finding.keys, "conditions": [condition]}}


def _bytes(text: str) -> bytes:
    """The API server checks that it is base64."""
    try:
        return base64.b64decode(text)
    except (binascii.Error, ValueError):
        return b""


def _decoded(target: Json) -> TenantKeys | None:
    """What gateways have; None where no operator wrote it, which what is written now cures."""
    text = (target.get("data") or {}).get(tenant_keys.ENTRY)
    if not text:
        return None
    try:
        return tenant_keys.decode(_bytes(text))
    except msgspec.MsgspecError:
        LOG.warning("Secret %s holds no tenants of an operator: it is written again", names.GATEWAY_KEYS_SECRET)
        return None
