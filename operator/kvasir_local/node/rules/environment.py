"""Builds the environment of a container: references resolved, $(VAR) expanded as Kubernetes does."""

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from kvasir_api import names
from kvasir_kube.kinds import Json
from kvasir_local.node.rules import downward_api
from kvasir_local.node.rules.kinds import ConfigError


class ConfigSources(Protocol):
    """ConfigMaps and Secrets of one namespace, as last seen."""

    def config_map(self, name: str) -> Json | None:
        """The ConfigMap of that name, or None."""

    def secret(self, name: str) -> Json | None:
        """The Secret of that name, or None."""


@dataclass(frozen=True, slots=True)
class NamespaceConfig:
    """ConfigMaps and Secrets in two maps: one consistent view of the caches."""

    config_maps: Mapping[str, Json]
    secrets: Mapping[str, Json]

    def config_map(self, name: str) -> Json | None:
        """The ConfigMap of that name, or None."""
        return self.config_maps.get(name)

    def secret(self, name: str) -> Json | None:
        """The Secret of that name, or None."""
        return self.secrets.get(name)


def texts(obj: Json, kind: str) -> dict[str, bytes]:
    """Every key of a ConfigMap or Secret with its bytes."""
    if kind == "Secret":
        return {name: base64.b64decode(value) for name, value in (obj.get("data") or {}).items()}
    plain = {name: str(value).encode() for name, value in (obj.get("data") or {}).items()}
    return plain | {name: base64.b64decode(value) for name, value in (obj.get("binaryData") or {}).items()}


def environment(
    pod: Json,
    container: Json,
    *,
    placement: downward_api.PodPlacement,
    sources: ConfigSources,
    base: Mapping[str, str],
    injected: Mapping[str, str],
) -> dict[str, str]:
    """Variables of a container, later ones winning: base (the image), injected (the API server), envFrom, env. The
    address to listen on is the pod's own, since all pods share this machine's network.

    ConfigError names the missing object or key; an optional reference that is missing leaves its variable out.
    """
    found = {**base, **injected}
    for entry in container.get("envFrom") or ():
        found.update(_env_from(entry, sources))
    for entry in container.get("env") or ():
        value = _value(pod, container, entry, placement, sources, found)
        if value is not None:
            found[entry["name"]] = value
    return found


def expand(text: str, variables: Mapping[str, str]) -> str:
    """`$(NAME)` becomes the variable, `$$` becomes `$`, an unknown reference stays as it is written."""

    def one(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return variables.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^()]*)\)", one, text)


def _env_from(entry: Json, sources: ConfigSources) -> dict[str, str]:
    kind, ref = ("ConfigMap", entry["configMapRef"]) if "configMapRef" in entry else ("Secret", entry["secretRef"])
    obj = _lookup(kind, ref["name"], sources, optional=bool(ref.get("optional")))
    prefix = entry.get("prefix") or ""
    return {prefix + name: value.decode(errors="replace") for name, value in texts(obj, kind).items()} if obj else {}


def _value(
    pod: Json,
    container: Json,
    entry: Json,
    placement: downward_api.PodPlacement,
    sources: ConfigSources,
    known: Mapping[str, str],
) -> str | None:
    if entry["name"] == names.ENV_LISTEN_ADDRESS:
        return placement.pod_ip
    ref = entry.get("valueFrom")
    if not ref:
        return expand(entry.get("value") or "", known)
    if "fieldRef" in ref:
        return downward_api.field(pod, placement, ref["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in ref:
        return downward_api.resource(pod, placement, ref["resourceFieldRef"], container["name"])
    kind, key_ref = (
        ("ConfigMap", ref["configMapKeyRef"]) if "configMapKeyRef" in ref else ("Secret", ref["secretKeyRef"])
    )
    optional = bool(key_ref.get("optional"))
    obj = _lookup(kind, key_ref["name"], sources, optional=optional)
    value = texts(obj, kind).get(key_ref["key"]) if obj else None
    if value is None and not optional:
        raise ConfigError(
            f"couldn't find key {key_ref['key']} in {kind} {pod['metadata']['namespace']}/{key_ref['name']}"
        )
    return value.decode(errors="replace") if value is not None else None


def _lookup(kind: str, name: str, sources: ConfigSources, *, optional: bool) -> Json | None:
    obj = sources.config_map(name) if kind == "ConfigMap" else sources.secret(name)
    if obj is None and not optional:
        raise ConfigError(f'{kind.lower()} "{name}" not found')
    return obj
