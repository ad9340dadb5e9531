"""What pods refer to, as last seen: ConfigMaps, Secrets, claims and volumes, each mirrored once for the whole node."""

import asyncio
from collections.abc import Callable

from kvasir_kube.cluster import Cluster
from kvasir_kube.informer import Informer
from kvasir_kube.kinds import CLAIM
from kvasir_local.node.apikinds import CONFIG_MAP, SECRET, VOLUME
from kvasir_local.node.rules.environ import Fixed
from kvasir_local.node.rules.kinds import Json


class Sources:
    """Mirrors and look-ups. on_change is told the namespace of anything that changed, "" for a volume."""

    def __init__(self, cluster: Cluster, on_change: Callable[[str], None]) -> None:
        def tell(key: tuple[str, str]) -> None:
            on_change(key[0])

        self._config_maps = Informer(cluster, CONFIG_MAP, on_change=tell)
        self._secrets = Informer(cluster, SECRET, on_change=tell)
        self._claims = Informer(cluster, CLAIM, on_change=tell)
        self._volumes = Informer(cluster, VOLUME, on_change=tell)

    @property
    def informers(self) -> tuple[Informer, ...]:
        """Everything that must run for the look-ups to be true."""
        return self._config_maps, self._secrets, self._claims, self._volumes

    async def synced(self) -> None:
        """Wait until every informer has seen its first list."""
        await asyncio.gather(*(informer.synced.wait() for informer in self.informers))

    def view(self, namespace: str) -> Fixed:
        """ConfigMaps and Secrets of one namespace."""
        return Fixed(_in(self._config_maps, namespace), _in(self._secrets, namespace))

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
