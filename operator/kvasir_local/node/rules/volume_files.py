"""Decides the files of configMap, secret, downwardAPI and projected volumes; `volumes` writes them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvasir_kube.kinds import Json
from kvasir_local.node.rules import downward_api
from kvasir_local.node.rules.environment import ConfigSources, texts
from kvasir_local.node.rules.kinds import ConfigError

KINDS: Final = ("configMap", "secret", "downwardAPI", "projected")
DEFAULT_MODE: Final = 0o644
DEFAULT_TOKEN_S: Final = 3600


@dataclass(frozen=True, slots=True)
class VolumeFile:
    """One file of a volume. mode: permission bits."""

    content: bytes
    mode: int


@dataclass(frozen=True, slots=True)
class TokenProjection:
    """A service account token of a projected volume. audience: empty means the API server's own."""

    audience: str
    expiration_s: int


def token_projections(volume: Json) -> tuple[TokenProjection, ...]:
    """The service account tokens of a volume, which must be requested before its files are known."""
    sources = (volume.get("projected") or {}).get("sources") or ()
    return tuple(
        _token_projection(source["serviceAccountToken"]) for source in sources if "serviceAccountToken" in source
    )


def files(
    pod: Json,
    volume: Json,
    *,
    placement: downward_api.PodPlacement,
    sources: ConfigSources,
    tokens: Mapping[TokenProjection, str],
) -> dict[str, VolumeFile]:
    """Relative path → file of a volume whose kind is in KINDS. ConfigError names what is missing."""
    kind = next(kind for kind in KINDS if kind in volume)
    source = volume[kind]
    mode = source.get("defaultMode") or DEFAULT_MODE
    if kind != "projected":
        return _projection(pod, {kind: source}, mode, placement, sources, tokens)
    found: dict[str, VolumeFile] = {}
    for part in source.get("sources") or ():
        found.update(_projection(pod, part, mode, placement, sources, tokens))
    return found


def _projection(
    pod: Json,
    part: Json,
    mode: int,
    placement: downward_api.PodPlacement,
    sources: ConfigSources,
    tokens: Mapping[TokenProjection, str],
) -> dict[str, VolumeFile]:
    if "configMap" in part:
        ref = part["configMap"]
        return _keys("ConfigMap", ref, ref["name"], sources.config_map(ref["name"]), mode)
    if "secret" in part:
        ref = part["secret"]
        name = ref.get("secretName") or ref["name"]
        return _keys("Secret", ref, name, sources.secret(name), mode)
    if "serviceAccountToken" in part:
        projection = _token_projection(part["serviceAccountToken"])
        return {_relative(part["serviceAccountToken"]["path"]): VolumeFile(tokens[projection].encode(), 0o600)}
    items = (part.get("downwardAPI") or {}).get("items") or ()
    return {
        _relative(item["path"]): VolumeFile(_downward(pod, item, placement).encode(), item.get("mode") or mode)
        for item in items
    }


def _keys(kind: str, ref: Json, name: str, obj: Json | None, mode: int) -> dict[str, VolumeFile]:
    optional = bool(ref.get("optional"))
    if obj is None:
        if optional:
            return {}
        raise ConfigError(f'{kind.lower()} "{name}" not found')
    contents = texts(obj, kind)
    if not ref.get("items"):
        return {key: VolumeFile(content, mode) for key, content in contents.items()}
    found = {}
    for item in ref["items"]:
        if item["key"] in contents:
            found[_relative(item["path"])] = VolumeFile(contents[item["key"]], item.get("mode") or mode)
        elif not optional:
            raise ConfigError(f'{kind.lower()} "{name}" has no key {item["key"]!r}')
    return found


def _downward(pod: Json, item: Json, placement: downward_api.PodPlacement) -> str:
    if "fieldRef" in item:
        return downward_api.field(pod, placement, item["fieldRef"]["fieldPath"])
    return downward_api.resource(pod, placement, item["resourceFieldRef"], None)


def _token_projection(source: Json) -> TokenProjection:
    return TokenProjection(source.get("audience") or "", source.get("expirationSeconds") or DEFAULT_TOKEN_S)


def _relative(path: str) -> str:
    if path.startswith("/") or ".." in path.split("/"):
        raise ConfigError(f"volume path {path!r} must stay inside its volume")
    return path
