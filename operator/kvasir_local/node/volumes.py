"""Creates the volumes of one pod as directories on this machine and updates their files. Called by `pod_worker`.

Their contents are decided by `rules/volume_files.py`, the directory of a claim by `rules/local_volumes.py`.
"""

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from kvasir_kube.cluster import Cluster
from kvasir_kube.errors import KubeError, NotFoundError
from kvasir_kube.kinds import Json
from kvasir_local.node import atomic_writer
from kvasir_local.node.api_kinds import token_request
from kvasir_local.node.object_cache import ObjectCache
from kvasir_local.node.rules import local_volumes, volume_files
from kvasir_local.node.rules.downward_api import PodPlacement
from kvasir_local.node.rules.kinds import ConfigError, epoch
from kvasir_local.node.rules.rootfs import Mount
from kvasir_local.node.rules.volume_files import TokenProjection

TOKEN_RETRY_S: Final = 10.0
TOKEN_LIFE_USED: Final = 0.8
"""A token is renewed when this fraction of its life is over, as the kubelet does."""


class PodVolumes:
    """The volumes of one pod below its directory, which goes with them."""

    def __init__(self, cluster: Cluster, cache: ObjectCache, directory: Path) -> None:
        self._cluster, self._cache, self._pod_dir = cluster, cache, directory
        self._directory = directory / "volumes"
        self._tokens: dict[TokenProjection, tuple[str, float]] = {}
        self._written: set[str] = set()

    async def mounts(self, pod: Json, placement: PodPlacement) -> dict[str, Mount]:
        """Volume name → its directory, created and written. ConfigError names what is missing."""
        return {
            volume["name"]: await self._mount(pod, volume, placement) for volume in pod["spec"].get("volumes") or ()
        }

    async def refresh(self, pod: Json, placement: PodPlacement) -> float | None:
        """Rewrite the files of volumes in use whose sources changed.

        Returns when a token must be renewed (epoch), if any.
        """
        for volume in pod["spec"].get("volumes") or ():
            if volume["name"] in self._written:
                await self._write(pod, volume, placement)
        return min((due for _, due in self._tokens.values()), default=None)

    def remove(self) -> None:
        """Delete the pod's directory."""
        shutil.rmtree(self._pod_dir, ignore_errors=True)

    async def _mount(self, pod: Json, volume: Json, placement: PodPlacement) -> Mount:
        here = self._directory / volume["name"]
        if any(kind in volume for kind in volume_files.KINDS):
            await self._write(pod, volume, placement)
            return Mount(source=str(here), path="", read_only=True)
        if "hostPath" in volume:
            return _host_path(volume["hostPath"])
        if "persistentVolumeClaim" in volume:
            return self._claim(pod, volume["persistentVolumeClaim"])
        here.mkdir(parents=True, exist_ok=True)
        here.chmod(0o777)
        return Mount(source=str(here), path="", read_only=False)

    async def _write(self, pod: Json, volume: Json, placement: PodPlacement) -> None:
        projections = volume_files.token_projections(volume)
        tokens = {projection: await self._token(pod, projection) for projection in projections}
        view = self._cache.view(pod["metadata"]["namespace"])
        files = volume_files.files(pod, volume, placement=placement, sources=view, tokens=tokens)
        atomic_writer.write(self._directory / volume["name"], files)
        self._written.add(volume["name"])

    async def _token(self, pod: Json, projection: TokenProjection) -> str:
        known = self._tokens.get(projection)
        if known and time.time() < known[1]:
            return known[0]
        metadata, account = pod["metadata"], pod["spec"].get("serviceAccountName") or "default"
        bound = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "metadata": {"namespace": metadata["namespace"], "name": account},
            "spec": {
                "audiences": [projection.audience] if projection.audience else [],
                "expirationSeconds": projection.expiration_s,
                "boundObjectRef": bound,
            },
        }
        try:
            answer = await self._cluster.create(token_request(account), request)
        except KubeError as error:
            if error.permanent or isinstance(error, NotFoundError):
                raise ConfigError(f'no token for service account "{account}": {error}') from error
            raise
        now = time.time()
        life_s = epoch(answer["status"]["expirationTimestamp"]) - now
        self._tokens[projection] = answer["status"]["token"], now + max(life_s * TOKEN_LIFE_USED, TOKEN_RETRY_S)
        return self._tokens[projection][0]

    def _claim(self, pod: Json, reference: Json) -> Mount:
        name = reference["claimName"]
        claim = self._cache.claim(pod["metadata"]["namespace"], name)
        bound = self._cache.volume(claim["spec"].get("volumeName") or "") if claim else None
        path = local_volumes.directory_of(claim, bound, name)
        os.makedirs(path, exist_ok=True)
        return Mount(source=path, path="", read_only=bool(reference.get("readOnly")))


def with_files(mount: Mount) -> Mount:
    """The mount with its source made (a missing subPath becomes a directory) and recognised as file or directory."""
    if not os.path.lexists(mount.source):
        os.makedirs(mount.source, exist_ok=True)
    return replace(mount, source=os.path.realpath(mount.source), is_file=not os.path.isdir(mount.source))


def _host_path(source: Json) -> Mount:
    path, kind = source["path"], source.get("type") or ""
    if kind == "DirectoryOrCreate":
        os.makedirs(path, exist_ok=True)
    elif kind == "FileOrCreate" and not os.path.exists(path):
        Path(path).touch()
    wants_dir = kind.startswith("Directory") if kind else os.path.isdir(path)
    if not os.path.exists(path) or os.path.isdir(path) != wants_dir:
        raise ConfigError(f"hostPath {path} is no {'directory' if wants_dir else 'file'} on this machine")
    return Mount(source=path, path="", read_only=False, is_file=not wants_dir)
