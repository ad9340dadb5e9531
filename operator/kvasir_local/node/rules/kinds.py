"""Shared helpers on objects as the API server sends them, and the error that a pod's author can act on."""

from datetime import UTC, datetime

from kvasir_kube.kinds import Json


class ConfigError(Exception):
    """A container cannot be configured (yet): a missing key, a bad reference. The message names what and where."""


def containers(spec: Json) -> tuple[Json, ...]:
    """The containers of a pod spec, without init containers."""
    return tuple(spec.get("containers") or ())


def init_containers(spec: Json) -> tuple[Json, ...]:
    """The init containers of a pod spec, in order."""
    return tuple(spec.get("initContainers") or ())


def named(spec: Json, name: str) -> Json:
    """The container or init container of that name; KeyError when there is none."""
    for container in (*init_containers(spec), *containers(spec)):
        if container["name"] == name:
            return container
    raise KeyError(name)


def timestamp(epoch_s: float) -> str:
    """RFC 3339 in UTC, whole seconds, as status fields carry it."""
    return datetime.fromtimestamp(int(epoch_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp(epoch_s: float) -> str:
    """RFC 3339 in UTC with microseconds, as Leases and container logs carry it."""
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def epoch(text: str) -> float:
    """Seconds since 1970 of an RFC 3339 time. ValueError when it is none."""
    return datetime.fromisoformat(text).timestamp()
