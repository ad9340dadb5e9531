"""Caches of the objects that pods refer to: ConfigMaps, Secrets, claims and volumes; one informer per kind and node."""

import asyncio
from collections.abc import Callable

from kvasir_kube.cluster import Cluster
from kvasir_kube.informer import Informer
from kvasir_kube.kinds import CLAIM, Json
from kvasir_local.node.api_kinds import CONFIG_MAP, SECRET, VOLUME
from kvasir_local.node.rules.environment import NamespaceConfig


class ObjectCache:
    """Informers and look-ups. on_change gets the namespace of a changed object, "" for a volume."""

    def __init__(self, cluster: Cluster, on_change: Callable[[str], None]) -> None:
        def notify(key: tuple[str, str]) -> None:
            on_change(key[0])

        self._config_maps = Informer(cluster, CONFIG_MAP, on_change=notify)
        self._secrets = Informer(cluster, SECRET, on_change=notify)
        self._claims = Informer(cluster, CLAIM, on_change=notify)
        self._volumes = Informer(cluster, VOLUME, on_change=notify)

    @property
    def informers(self) -> tuple[Informer, ...]:
        """The informers to run."""
        return self._config_maps, self._secrets, self._claims, self._volumes

    async def synced(self) -> None:
        """Wait for the first list of every informer."""
        await asyncio.gather(*(informer.synced.wait() for informer in self.informers))

    def view(self, namespace: str) -> NamespaceConfig:
        """ConfigMaps and Secrets of one namespace."""
        return NamespaceConfig(_in(self._config_maps, namespace), _in(self._secrets, namespace))

    def claim(self, namespace: str, name: str) -> Json | None:
        """A claim, if it is known."""
        return self._claims.objects.get((namespace, name))

    def volume(self, name: str) -> Json | None:
        """A persistent volume, if it is known."""
        return self._volumes.objects.get(("", name))

    def claims(self) -> list[Json]:
        """Every claim."""
        return list(self._claims.objects.values())

    def volumes(self) -> list[Json]:
        """Every persistent volume."""
        return list(self._volumes.objects.values())


def _in(informer: Informer, namespace: str) -> dict[str, Json]:
    return {name: obj for (where, name), obj in informer.objects.items() if where == namespace}
