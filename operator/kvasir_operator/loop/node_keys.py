"""Keeps the keys by which the nodes of a replica recognize one another: one for each service whose replicas are several
pods, in one Secret of its namespace. They are random and stay as they are. A service that goes takes its own.
"""

import asyncio
import base64
import binascii
import logging
import secrets
from typing import Final

from kvasir_api import names
from kvasir_kube.cluster import Cluster
from kvasir_kube.kinds import INFERENCE_SERVICE, SECRET, Json, key, uid
from kvasir_operator.desired.namespace_secret import has_content, namespace_secret
from kvasir_operator.loop.clock import Clock
from kvasir_operator.loop.own_secret import own_secret
from kvasir_operator.loop.store import Store

LOG: Final = logging.getLogger(__name__)
READ_EVERY_S: Final = 60.0
"""So long may the Secret lack what another client took out of it."""
LEAST_BYTES: Final = 32
"""A shorter entry is none of ours; the runtime refuses it."""


class NodeKeys:
    """Of all namespaces."""

    def __init__(self, cluster: Cluster, store: Store, *, clock: Clock) -> None:
        self._cluster, self._store, self._clock = cluster, store, clock
        self._read: dict[str, tuple[float, frozenset[tuple[str, str]]]] = {}
        """Of a namespace: when its Secret was read last, with names and uids of services that have a key by then. One
        that was deleted and made again is another one, whose key went with the Secret of its predecessor."""
        self._lock = asyncio.Lock()

    async def ensure(self, namespace: str) -> None:
        """Each service of the namespace whose replicas are several pods has a key.

        Raises KubeError, ConflictError where the Secret is not the operator's.
        """
        async with self._lock:
            services = [one for one in self._store.all(INFERENCE_SERVICE) if key(one)[0] == namespace]
            needing = frozenset((key(one)[1], uid(one)) for one in services if _is_group(one))
            at, known = self._read.get(namespace, (-READ_EVERY_S, frozenset[tuple[str, str]]()))
            if needing <= known and self._clock.steady() - at < READ_EVERY_S:
                return
            await self._write(namespace, services, needing)
            self._read[namespace] = (self._clock.steady(), needing)

    async def _write(self, namespace: str, services: list[Json], needing: frozenset[tuple[str, str]]) -> None:
        """A service whose replicas are one pod by now keeps its key, which pods of before may still need."""
        found = await own_secret(self._cluster, namespace, names.NODE_KEYS_SECRET, "with the keys of nodes")
        content, owners = dict[str, bytes](), list[Json]()
        for service in services:
            name = key(service)[1]
            known = _key(found, name)
            if known or (name, uid(service)) in needing:
                content[name] = known or secrets.token_urlsafe(48).encode()
                owners.append(service)
        secret = namespace_secret(namespace, names.NODE_KEYS_SECRET, owners, content)
        if not has_content(found, secret):
            await self._cluster.apply(SECRET, secret, manager=names.MANAGER)
            LOG.info("namespace %s: keys of nodes for %d services", namespace, len(content))


def _is_group(service: Json) -> bool:
    """Whether replicas of a service are several pods, or may be; the API server accepts whole numbers only."""
    spec = service.get("spec") or {}
    return spec.get("parallelism") == "Auto" or int((spec.get("runtime") or {}).get("nnodes", 1)) > 1


def _key(found: Json, service: str) -> bytes:
    """Of a service, as the Secret has it; empty where it has none, or none that nodes would take."""
    try:
        text = base64.b64decode((found.get("data") or {}).get(service) or "", validate=True)
    except binascii.Error:
        return b""
    return text if len(text.strip()) >= LEAST_BYTES else b""
