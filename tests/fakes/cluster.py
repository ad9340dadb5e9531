"""An API server in memory: enough of the verbs to drive informers and reconciles without a process.

It merges applied objects deeply and replaces lists; it knows no ownership of fields, no defaults, no CEL and no garbage
collection. Those are tested against a real API server. A status that generic tools could not rely on is refused.
"""

import asyncio
import copy
from collections.abc import AsyncGenerator, Callable
from typing import Any

from fakes.flux import breaches
from kvasir_kube.cluster import Known, Listing, WatchEvent, WatchVerb, as_it_is, none_known
from kvasir_kube.errors import ConflictError, ExpiredError, KubeError, NotFoundError
from kvasir_kube.kinds import INFERENCE_SERVICE, Json, Key, Kind, key, labels


def merged(old: Any, new: Any) -> Any:
    """JSON merge: None removes, objects merge, the rest is replaced."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return copy.deepcopy(new)
    result = {**old}
    for name, value in new.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


class FakeCluster:
    """Objects by plural and key. `writes` lists every write; `errors` are what the next calls of a verb raise, None for
    a call that goes well; "write" are creations of children and applies. `reads`: of which objects `get` was called.
    `owned_by_others`: fields of statuses that applying does not remove."""

    def __init__(self) -> None:
        self.owned_by_others: dict[str, Json] = {}
        self.objects: dict[str, dict[Key, Json]] = {}
        self.writes: list[tuple[str, str, Key]] = []
        self.reads: list[Key] = []
        self.errors: dict[str, list[KubeError | None]] = {}
        self.expired = False
        self._version = 100
        self._log: list[tuple[int, str, WatchVerb, Json]] = []
        self._news = asyncio.Condition()

    def stored(self, kind: Kind, namespace: str, name: str) -> Json:
        """The object as it is now; KeyError when there is none."""
        return self.objects[kind.plural][namespace, name]

    def names(self, kind: Kind) -> list[str]:
        """Names of the objects of a kind, sorted."""
        return sorted(name for _, name in self.objects.get(kind.plural, {}))

    async def put(self, kind: Kind, obj: Json) -> Json:
        """What somebody else writes: create or replace, with a new version."""
        return await self._store(kind, obj)

    async def drop(self, kind: Kind, namespace: str, name: str) -> None:
        """What somebody else deletes."""
        gone = self.objects[kind.plural].pop((namespace, name))
        await self._tell(kind, "DELETED", gone)

    async def get(self, kind: Kind, namespace: str, name: str) -> Json:
        self._raise("get")
        self.reads.append((namespace, name))
        found = self.objects.get(kind.plural, {}).get((namespace, name))
        if found is None:
            raise NotFoundError(f'{kind.plural} "{name}" not found', status=404)
        return copy.deepcopy(found)

    async def list(
        self,
        kind: Kind,
        namespace: str = "",
        selector: str = "",
        *,
        known: Known = none_known,
        transform: Callable[[Json], Json] = as_it_is,
    ) -> Listing:
        self._raise("list")
        found = [
            known(key(obj), obj["metadata"]["resourceVersion"]) or transform(copy.deepcopy(obj))
            for obj in self.objects.get(kind.plural, {}).values()
            if (not namespace or key(obj)[0] == namespace) and _matches(obj, selector)
        ]
        return Listing(items=tuple(found), resource_version=str(self._version))

    async def watch(
        self, kind: Kind, namespace: str = "", selector: str = "", *, resource_version: str
    ) -> AsyncGenerator[WatchEvent, None]:
        self._raise("watch")
        seen = int(resource_version)
        while True:
            if self.expired:
                self.expired = False
                raise ExpiredError("too old resource version", status=410)
            for version, plural, verb, obj in list(self._log):
                if version > seen and plural == kind.plural and _matches(obj, selector):
                    seen = version
                    yield WatchEvent(verb=verb, obj=copy.deepcopy(obj))
            async with self._news:
                await self._news.wait()

    async def create(self, kind: Kind, obj: Json, *, manager: str = "") -> Json:
        self._raise("create")
        if manager:
            self._raise("write")
        if key(obj) in self.objects.get(kind.plural, {}):
            raise ConflictError(f"{key(obj)} exists", status=409)
        self.writes.append(("create", kind.plural, key(obj)))
        return await self._store(kind, obj)

    async def apply(self, kind: Kind, obj: Json, *, manager: str, subresource: str = "") -> Json:
        self._raise("apply")
        self._raise("write")
        old = self.objects.get(kind.plural, {}).get(key(obj))
        if subresource and old is None:
            raise NotFoundError(f"{key(obj)} not found", status=404)
        _unmodified(old or {}, obj)
        self.writes.append((f"apply{'/' + subresource if subresource else ''}", kind.plural, key(obj)))
        if subresource and old is not None:
            others = self.owned_by_others.get(kind.plural, {})
            changed = {**old, subresource: merged(others, obj[subresource])}
            assert kind is not INFERENCE_SERVICE or breaches(changed) == []
            return await self._store(kind, changed)
        return await self._store(kind, merged(old or {}, obj))

    async def merge(
        self, kind: Kind, namespace: str, name: str, patch: Json, *, manager: str, subresource: str = ""
    ) -> Json:
        self._raise("merge")
        old = await self.get(kind, namespace, name)
        _unmodified(old, patch)
        self.writes.append((f"merge{'/' + subresource if subresource else ''}", kind.plural, (namespace, name)))
        return await self._store(kind, merged(old, patch))

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str = "", grace_s: int | None = None) -> None:
        self._raise("delete")
        found = self.objects.get(kind.plural, {}).get((namespace, name))
        if found is None:
            return
        if uid and found["metadata"]["uid"] != uid:
            raise ConflictError(f"the uid of {name} is another", status=409)
        self.writes.append(("delete", kind.plural, (namespace, name)))
        await self.drop(kind, namespace, name)

    async def wake(self) -> None:
        """Let watches look again."""
        async with self._news:
            self._news.notify_all()

    def _raise(self, verb: str) -> None:
        error = self.errors[verb].pop(0) if self.errors.get(verb) else None
        if error is not None:
            raise error

    async def _store(self, kind: Kind, obj: Json) -> Json:
        old = self.objects.setdefault(kind.plural, {}).get(key(obj))
        obj = copy.deepcopy(obj)
        metadata = obj.setdefault("metadata", {})
        self._version += 1
        metadata["resourceVersion"] = str(self._version)
        metadata.setdefault("uid", f"uid-{self._version}")
        changed = old is None or old.get("spec") != obj.get("spec")
        metadata["generation"] = int((old or {}).get("metadata", {}).get("generation", 0)) + (1 if changed else 0)
        self.objects[kind.plural][key(obj)] = obj
        await self._tell(kind, "MODIFIED" if old else "ADDED", obj)
        return copy.deepcopy(obj)

    async def _tell(self, kind: Kind, verb: WatchVerb, obj: Json) -> None:
        if verb == "DELETED":
            self._version += 1
        self._log.append((self._version, kind.plural, verb, obj))
        await self.wake()


def _unmodified(old: Json, given: Json) -> None:
    """Raises ConflictError where what is written is of another version than what stands."""
    version = given.get("metadata", {}).get("resourceVersion")
    if version is not None and version != old.get("metadata", {}).get("resourceVersion"):
        raise ConflictError(f"{key(old)} has been modified", status=409)


def _matches(obj: Json, selector: str) -> bool:
    wanted = [part.split("=", 1) for part in selector.split(",") if part]
    have = labels(obj)
    return all(have.get(part[0]) == part[1] if len(part) == 2 else part[0] in have for part in wanted)
