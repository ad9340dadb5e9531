"""Decides the files of configMap, secret, downwardAPI and projected volumes; `volumes` writes them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvasir_local.node.rules import downward
from kvasir_local.node.rules.environ import Sources, texts
from kvasir_local.node.rules.kinds import ConfigError, Json

KINDS: Final = ("configMap", "secret", "downwardAPI", "projected")
DEFAULT_MODE: Final = 0o644
DEFAULT_TOKEN_S: Final = 3600


@dataclass(frozen=True, slots=True)
class File:
    """One file of a volume. mode: permission bits."""

    content: bytes
    mode: int


@dataclass(frozen=True, slots=True)
class TokenWish:
    """A service account token that a projected volume asks for. audience: empty means the API server's own."""

    audience: str
    expiration_s: int


def token_wishes(volume: Json) -> tuple[TokenWish, ...]:
    """Tokens that the volume needs before its files can be told."""
    sources = (volume.get("projected") or {}).get("sources") or ()
    return tuple(_wish(source["serviceAccountToken"]) for source in sources if "serviceAccountToken" in source)


def files(
    pod: Json, volume: Json, *, place: downward.Place, sources: Sources, tokens: Mapping[TokenWish, str]
) -> dict[str, File]:
    """Relative path → file of a volume whose kind is in KINDS. ConfigError names what is missing."""
    kind = next(kind for kind in KINDS if kind in volume)
    source = volume[kind]
    mode = source.get("defaultMode") or DEFAULT_MODE
    if kind != "projected":
        return _projection(pod, {kind: source}, mode, place, sources, tokens)
    found: dict[str, File] = {}
    for part in source.get("sources") or ():
        found.update(_projection(pod, part, mode, place, sources, tokens))
    return found


def _projection(
    pod: Json, part: Json, mode: int, place: downward.Place, sources: Sources, tokens: Mapping[TokenWish, str]
) -> dict[str, File]:
    if "configMap" in part:
        ref = part["configMap"]
        return _keys("ConfigMap", ref, ref["name"], sources.config_map(ref["name"]), mode)
    if "secret" in part:
        ref = part["secret"]
        name = ref.get("secretName") or ref["name"]
        return _keys("Secret", ref, name, sources.secret(name), mode)
    if "serviceAccountToken" in part:
        wish = _wish(part["serviceAccountToken"])
        return {_relative(part["serviceAccountToken"]["path"]): File(tokens[wish].encode(), 0o600)}
    items = (part.get("downwardAPI") or {}).get("items") or ()
    return {
        _relative(item["path"]): File(_downward(pod, item, place).encode(), item.get("mode") or mode) for item in items
    }


def _keys(kind: str, ref: Json, name: str, obj: Json | None, mode: int) -> dict[str, File]:
    optional = bool(ref.get("optional"))
    if obj is None:
        if optional:
            return {}
        raise ConfigError(f'{kind.lower()} "{name}" not found')
    contents = texts(obj, kind)
    if not ref.get("items"):
        return {key: File(content, mode) for key, content in contents.items()}
    found = {}
    for item in ref["items"]:
        if item["key"] in contents:
            found[_relative(item["path"])] = File(contents[item["key"]], item.get("mode") or mode)
        elif not optional:
            raise ConfigError(f'{kind.lower()} "{name}" has no key {item["key"]!r}')
    return found


def _downward(pod: Json, item: Json, place: downward.Place) -> str:
    if "fieldRef" in item:
        return downward.field(pod, place, item["fieldRef"]["fieldPath"])
    return downward.resource(pod, place, item["resourceFieldRef"], None)


def _wish(source: Json) -> TokenWish:
    return TokenWish(source.get("audience") or "", source.get("expirationSeconds") or DEFAULT_TOKEN_S)


def _relative(path: str) -> str:
    if path.startswith("/") or ".." in path.split("/"):
        raise ConfigError(f"volume path {path!r} must stay inside its volume")
    return path
