"""Reads the published tenants, and the authority of pods that speak TLS, from their Secret, every few seconds.

A gateway that cannot read it keeps what it has; one that never could takes no requests, since it would take those
without a key too. The operator writes it also where there is no tenant, so that a Secret that is missing or empty says
nothing. One Secret by its name is all that the gateway may read.
"""

import asyncio
import base64
import logging
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from kvasir_api import names, tenant_keys
from kvasir_api.tenant_keys import TenantKeys
from kvasir_kube.cluster import Cluster
from kvasir_kube.errors import KubeError
from kvasir_kube.kinds import SECRET

LOG = logging.getLogger(__name__)
EVERY_S: Final = 3.0
FIRST_EVERY_S: Final = 0.5
"""Before the first reading."""


class TenantSource:
    """namespace: of the gateways and the operator, "" where there is none, and no tenant. synced: set with the first
    reading."""

    def __init__(self, cluster: Cluster | None, namespace: str, *, every_s: float = EVERY_S) -> None:
        self.synced = asyncio.Event()
        self._cluster, self._namespace, self._every_s = cluster, namespace, every_s

    async def run(self, take: Callable[[TenantKeys], None], verify: Callable[[str], None] = lambda _: None) -> None:
        """Read until cancelled. verify: takes the authority's certificates; raises ValueError where they are none."""
        if self._cluster is None or not self._namespace:
            self.synced.set()
            await asyncio.Event().wait()
            return
        trouble = ""
        while True:
            try:
                found = await self._read(self._cluster)
                take(_tenants(found))
                self.synced.set()
                if authority := found.get(names.POD_CA_ENTRY):
                    verify(base64.b64decode(authority).decode())
                trouble = ""
            except (KubeError, msgspec.MsgspecError, ValueError, _UnwrittenError) as error:
                if str(error) != trouble:
                    LOG.warning("Secret %s cannot be read: %s", names.GATEWAY_KEYS_SECRET, error)
                trouble = str(error)
            await asyncio.sleep(self._every_s if self.synced.is_set() else min(FIRST_EVERY_S, self._every_s))

    async def _read(self, cluster: Cluster) -> Mapping[str, str]:
        secret = await cluster.get(SECRET, self._namespace, names.GATEWAY_KEYS_SECRET)
        return secret.get("data") or {}


def _tenants(found: Mapping[str, str]) -> TenantKeys:
    text = found.get(tenant_keys.ENTRY)
    if not text:
        raise _UnwrittenError("no operator has written it yet")
    return tenant_keys.decode(base64.b64decode(text))


class _UnwrittenError(Exception):
    """The Secret has no tenants, not even none: it was just installed, or emptied by hand."""
