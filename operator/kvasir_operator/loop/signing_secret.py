"""Keeps the keys that sign the operator's calls to pods in a Secret of its own namespace, and makes new ones by age.

The Secret comes with the installation, empty: the operator may read and change this one and no other. Only the leader
writes, and only what it has read: where two believe to lead, one write fails and is done again on what the other wrote.
"""

import asyncio
import base64
import logging
import secrets
from collections.abc import Callable
from typing import Final

import msgspec

from kvasir_api import names
from kvasir_api.ops_tokens import Signer, new_private_key, public_key
from kvasir_kube.cluster import Cluster
from kvasir_kube.errors import KubeError
from kvasir_kube.kinds import SECRET, Json
from kvasir_operator.desired.continuation_keys import continuation_keys
from kvasir_operator.desired.signing_keys import SigningKey, is_due, signing, trusted
from kvasir_operator.loop.clock import Clock

LOG: Final = logging.getLogger(__name__)
READ_EVERY_S: Final = 300.0
RETRY_S: Final = 10.0
ENTRY: Final = "keys"


class SigningSecret:
    """public: texts of the keys that pods are to trust, in lines; empty until the Secret was read."""

    def __init__(self, cluster: Cluster, *, namespace: str, clock: Clock) -> None:
        self._cluster, self._namespace, self._clock = cluster, namespace, clock
        self._keys: tuple[SigningKey, ...] = ()
        self._signers: dict[str, Signer] = {}
        self.public = ""

    def authorization(self, instance: str, method: str, target: str) -> str:
        """Of one call to the process that is called so; empty while there is no key."""
        key = signing(self._keys, self._clock.wall())
        return self._signers[key.private].authorization(instance, method, target) if key else ""

    def continuation_keys(self, service_uid: str) -> tuple[bytes, ...]:
        """With which pods of a service sign continuation tokens, the first of them; none while there is no key."""
        return continuation_keys(self._keys, service_uid, self._clock.wall())

    async def refresh(self) -> bool:
        """Read the Secret, and write it where a key is due. Whether pods are to trust other keys. Raises KubeError."""
        found = await self._cluster.get(SECRET, self._namespace, names.SIGNING_SECRET)
        now = self._clock.wall()
        keys = _decoded(found)
        kept = trusted(keys, now)
        if is_due(kept, now):
            kept = (*kept, SigningKey(private=new_private_key(secrets.token_bytes), created=now))
        if kept != keys:
            version = found["metadata"]["resourceVersion"]  # another one may have been quicker
            content = base64.b64encode(msgspec.json.encode(kept)).decode()
            patch: Json = {"metadata": {"resourceVersion": version}, "data": {ENTRY: content}}
            await self._cluster.merge(SECRET, self._namespace, names.SIGNING_SECRET, patch, manager=names.MANAGER)
            LOG.info("calls to pods: %d keys, of which one was made now", len(kept))
        return self._use(kept)

    async def run(self, changed: Callable[[], None]) -> None:
        """Follow the Secret until cancelled. changed: called when pods are to trust other keys."""
        trouble = ""
        while True:
            try:
                if await self.refresh():
                    changed()
                trouble = ""
            except KubeError as error:
                if str(error) != trouble:
                    LOG.warning(
                        "the keys that sign calls to pods cannot be followed: Secret %s: %s",
                        names.SIGNING_SECRET,
                        error,
                    )
                trouble = str(error)
            await asyncio.sleep(RETRY_S if trouble else READ_EVERY_S)

    def _use(self, keys: tuple[SigningKey, ...]) -> bool:
        before = self.public
        if keys != self._keys:
            self._keys = keys
            self._signers = {
                key.private: Signer(key.private, wall=self._clock.wall, random=secrets.token_bytes) for key in keys
            }
            self.public = "\n".join(public_key(key.private) for key in keys)
        return self.public != before


def _decoded(found: Json) -> tuple[SigningKey, ...]:
    """The keys of a Secret; none of one that is empty, and of one that no operator wrote: nothing else cures that."""
    text = (found.get("data") or {}).get(ENTRY, "")
    if not text:
        return ()
    try:
        keys = msgspec.json.decode(base64.b64decode(text), type=tuple[SigningKey, ...])
        for key in keys:
            public_key(key.private)
    except (msgspec.MsgspecError, ValueError):  # without its words, which may have a part of a key
        LOG.warning("Secret %s holds no keys of an operator: new ones replace them", names.SIGNING_SECRET)
        return ()
    return keys
