"""Starts one container of a pod: its environment, volumes, root directory and process. Called by `pod_worker`.

Collects the input of the pure `rules` and carries out their results; errors carry their reason.
"""

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from kvasir_kube.kinds import Json
from kvasir_local.node import container as containers
from kvasir_local.node.container import Container
from kvasir_local.node.host_files import HostFiles
from kvasir_local.node.object_cache import ObjectCache
from kvasir_local.node.rules import container_config, devices, environment, images, rootfs
from kvasir_local.node.rules.devices import Gpus
from kvasir_local.node.rules.downward_api import PodPlacement
from kvasir_local.node.rules.kinds import ConfigError
from kvasir_local.node.rules.rootfs import Mount
from kvasir_local.node.settings import NodeSettings
from kvasir_local.node.volumes import with_files

HOME: Final = "/"
SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
RESOLVER: Final = "/etc/resolv.conf"
PASSED_ON: Final = ("LANG", "LC_ALL", "TZ", "KVASIR_LOCAL_STATE_DIR")
"""Variables of the node that containers inherit; the last marks every process of a local cluster."""


class UnknownImageError(Exception):
    """No program of this machine belongs to the image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRun:
    """One run of a container: which pod and container, where, with which volumes and GPUs; run counts from 0."""

    pod: Json
    container: Json
    placement: PodPlacement
    volumes: Mapping[str, Mount]
    gpus: tuple[int, ...]
    run: int


class ContainerStarter:
    """Starts containers on this machine."""

    def __init__(self, settings: NodeSettings, cache: ObjectCache, gpus: Gpus) -> None:
        self._settings, self._cache, self._gpus = settings, cache, gpus

    async def start(self, run: ContainerRun) -> Container:
        """Start one run. Raises UnknownImageError, ConfigError or container.StartFailedError."""
        name, uid = run.container["name"], run.pod["metadata"]["uid"]
        image = images.image_of(run.container["image"], self._settings.programs)
        if image is None:
            raise UnknownImageError(f'no program of this machine belongs to image "{run.container["image"]}"')
        config = container_config.config_of(run.pod, run.container, image, self._environment(run))
        message = self._settings.message(uid, name, run.run)
        message.parent.mkdir(parents=True, exist_ok=True)
        message.touch(mode=0o666)
        try:
            steps = self._steps(run, message)
        except (OSError, ValueError) as error:
            raise ConfigError(str(error)) from error
        log = self._settings.log(uid, name, run.run)
        self._forget_run(uid, name, run.run - 2)
        return await containers.start(config, root=log.with_suffix(".root"), steps=steps, log=log)

    def _forget_run(self, uid: str, name: str, run: int) -> None:
        """Keep the logs of this run and the previous one only."""
        log = self._settings.log(uid, name, run)
        for path in (log, log.with_name(f"{log.name}.1"), self._settings.message(uid, name, run)):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            log.with_suffix(".root").rmdir()

    def _environment(self, run: ContainerRun) -> dict[str, str]:
        passed = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        path = f"{self._settings.programs.scripts}:{SYSTEM_PATH}"
        gpus = devices.variables(run.gpus, self._gpus)
        base = {**passed, "PATH": path, "HOME": HOME, "HOSTNAME": container_config.hostname(run.pod), **gpus}
        return environment.environment(
            run.pod,
            run.container,
            placement=run.placement,
            sources=self._cache.view(run.pod["metadata"]["namespace"]),
            base=base,
            injected=container_config.injected(self._settings.api_host, self._settings.api_port),
        )

    def _steps(self, run: ContainerRun, message: Path) -> tuple[rootfs.Step, ...]:
        found = [with_files(mount) for mount in container_config.mounts(run.container, run.volumes)]
        path = run.container.get("terminationMessagePath") or "/dev/termination-log"
        found.append(Mount(source=str(message), path=path, read_only=False, is_file=True))
        present = frozenset(_device_files())
        security = run.container.get("securityContext") or {}
        return rootfs.layout(
            HostFiles(),
            found,
            keep=self._kept(mount.path for mount in found),
            devices=devices.files(run.gpus, self._gpus, present),
            read_only_root=bool(security.get("readOnlyRootFilesystem")),
        )

    def _kept(self, mounted: Iterable[str]) -> list[Mount]:
        """Host paths that a fresh directory or a mount hides though programs need them: interpreter, resolver file."""
        above = tuple(f"{top.rstrip('/')}/" for top in (*rootfs.SCRATCH, *mounted))
        hidden = [path for path in self._settings.keep if path.startswith(above)]
        kept = [Mount(source=path, path=path, read_only=True) for path in hidden]
        resolver = os.path.realpath(RESOLVER)
        if resolver.startswith("/run/") and os.path.exists(resolver):
            kept.append(Mount(source=resolver, path=resolver, read_only=True))
        return [replace(mount, is_file=not os.path.isdir(mount.source)) for mount in kept]


def _device_files() -> list[str]:
    found = [f"/dev/{name}" for name in os.listdir("/dev") if name.startswith("nvidia")]
    nested = [f"{path}/{name}" for path in found if os.path.isdir(path) for name in os.listdir(path)]
    return [path for path in found + nested if not os.path.isdir(path)]
