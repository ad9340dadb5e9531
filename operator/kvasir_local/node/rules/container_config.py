"""The configuration of one container of a pod: command, environment, capabilities, mounts. `container` starts it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvasir_kube.kinds import Json
from kvasir_local.node.rules import images
from kvasir_local.node.rules.environment import expand
from kvasir_local.node.rules.kinds import ConfigError
from kvasir_local.node.rules.rootfs import Mount, Step

CAPABILITIES: Final = {
    "CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "FSETID": 4, "KILL": 5, "SETGID": 6, "SETUID": 7, "SETPCAP": 8,
    "NET_BIND_SERVICE": 10, "NET_RAW": 13, "SYS_CHROOT": 18, "MKNOD": 27, "AUDIT_WRITE": 29, "SETFCAP": 31,
}  # fmt: skip
"""What a container may have at most: the default set of container engines, by number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerConfig:
    """One container as processes.

    hostname: empty means the machine's. Paths inside the container unless said otherwise.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    hostname: str
    capabilities: tuple[int, ...]
    no_new_privileges: bool

    def order(
        self, *, root: str, steps: Sequence[Step], log: str, node_pid: int, user_namespace: bool
    ) -> dict[str, Any]:
        """The JSON order for `container_shim.py`. root, log: host paths."""
        return {
            **self.enter_order(self.argv, pid=0, node_pid=node_pid, user_namespace=user_namespace),
            "hostname": self.hostname,
            "root": root,
            "steps": [list(step) for step in steps],
            "log": log,
        }

    def enter_order(self, argv: Sequence[str], *, pid: int, node_pid: int, user_namespace: bool) -> dict[str, Any]:
        """The JSON order that runs another command in the running container whose process 1 is pid (0: a new one)."""
        order: dict[str, Any] = {
            "argv": list(argv),
            "env": dict(self.env),
            "cwd": self.cwd,
            "capabilities": list(self.capabilities),
            "no_new_privileges": self.no_new_privileges,
            "node_pid": node_pid,
            "user_namespace": user_namespace,
        }
        return {**order, "enter": pid} if pid else order


def config_of(pod: Json, container: Json, image: images.Image, env: Mapping[str, str]) -> ContainerConfig:
    """The configuration of a container whose environment is known. ConfigError when there is no command to run."""
    expanded = {name: tuple(expand(text, env) for text in container.get(name) or ()) for name in ("command", "args")}
    argv = images.argv(image, expanded["command"], expanded["args"])
    if not argv:
        raise ConfigError(
            f"container {container['name']!r}: image {container['image']!r} has no entry point; state a command"
        )
    security = container.get("securityContext") or {}
    return ContainerConfig(
        argv=argv,
        env=env,
        cwd=container.get("workingDir") or "/",
        hostname="" if pod["spec"].get("hostNetwork") else hostname(pod),
        capabilities=capabilities(security.get("capabilities") or {}),
        no_new_privileges=security.get("allowPrivilegeEscalation") is False,
    )


def hostname(pod: Json) -> str:
    """The pod's own host name, at most 63 characters."""
    return str(pod["spec"].get("hostname") or pod["metadata"]["name"])[:63].rstrip("-.")


def capabilities(declared: Json) -> tuple[int, ...]:
    """Capability numbers that remain after `drop` and `add`."""
    dropped = {name.removeprefix("CAP_").upper() for name in declared.get("drop") or ()}
    kept = set() if "ALL" in dropped else CAPABILITIES.keys() - dropped
    kept |= {name.removeprefix("CAP_").upper() for name in declared.get("add") or ()} & CAPABILITIES.keys()
    return tuple(sorted(CAPABILITIES[name] for name in kept))


def mounts(container: Json, directories: Mapping[str, Mount]) -> tuple[Mount, ...]:
    """The container's mounts. directories: where each volume of the pod lies on the host (its path is not used).

    ConfigError for a volume that the pod does not declare or a subPath that leaves it. $(VAR) is not expanded in
    subPath.
    """
    return tuple(_mounts(container.get("volumeMounts") or (), directories))


def _mounts(declared: Iterable[Json], directories: Mapping[str, Mount]) -> Iterable[Mount]:
    for mount in declared:
        volume = directories.get(mount["name"])
        if volume is None:
            raise ConfigError(f"volumeMounts: the pod declares no volume {mount['name']!r}")
        sub_path = mount.get("subPath") or ""
        if sub_path.startswith("/") or ".." in sub_path.split("/"):
            raise ConfigError(f"subPath {sub_path!r} must stay inside its volume")
        source = f"{volume.source}/{sub_path}" if sub_path else volume.source
        read_only = volume.read_only or bool(mount.get("readOnly"))
        yield Mount(
            source=source, path=mount["mountPath"], read_only=read_only, is_file=volume.is_file and not sub_path
        )


def injected(host: str, port: int) -> dict[str, str]:
    """The API server's address as every pod gets it."""
    return {
        "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": str(port),
        "KUBERNETES_SERVICE_PORT_HTTPS": str(port),
        "KUBERNETES_PORT": f"tcp://{host}:{port}",
    }
