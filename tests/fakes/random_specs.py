"""Specs that the CRD's own schema allows, drawn by hypothesis: a few fields at a time, as people edit.

What no stub cluster could bring to rest is pinned: more replicas than a node has addresses, waits of hours, names of
which only a few exist. Everything else, and every field that the schema will get, is drawn from its type, bounds,
pattern or choices; sizes and labels that no node has end with pods that find none.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any, Final

from hypothesis import strategies as st

from kvasir_api import crd
from kvasir_kube.kinds import Json

ODD: Final = ("", "a", "a b", "$(id)", "`id`", "a;b|c&d", "'\"", "--host", "é", "x" * 63, "a\\b", "%s{}")
"""Texts that a shell, a template or a validation might stumble over."""
PINS: Final[dict[str, st.SearchStrategy[Any]]] = {
    "model.uri": st.sampled_from(["file:///srv/a", "file:///srv/b b;$(id)", "pvc://models/a", "pvc://models/a/b.c_d"]),
    "replicas": st.integers(0, 3),
    "autoscaling.minReplicas": st.integers(1, 3),
    "autoscaling.maxReplicas": st.integers(2, 1000),
    "resources.accelerator.resourceName": st.sampled_from(["nvidia.com/gpu", "example.com/none"]),
    "resources.accelerator.classes": st.lists(st.sampled_from(["{class}", "none"]), max_size=2, unique=True),
    "resources.accelerator.minMemory": st.sampled_from(["", "1Gi", "900Gi"]),
    "rollout.steps[].pauseSeconds": st.integers(0, 1),
    "pod.nodeSelector": st.sampled_from([{}, {"kubernetes.io/os": "linux"}, {"disk": "none"}]),
}
COMMON: Final[dict[str, st.SearchStrategy[Any]]] = {
    "resources.cpu": st.sampled_from(["1", "250m", "0.5", "3000m", "500"]),
    "resources.memory": st.sampled_from(["64Mi", "1G", "1.5Gi", "1073741824", "2Ti"]),
}
"""Beside what their pattern allows, since hardly anything of it is what people write."""
WITH: Final[dict[str, Json]] = {
    "resources.accelerator.classes": {"count": 1},
    "resources.accelerator.minMemory": {"count": 1},
    "runtime.nnodes": {"tensorParallelSize": 8},
}
"""What a field needs beside it to mean anything, or to come to rest before the test ends."""


def leaves(node: Json, path: str = "") -> Iterator[tuple[str, Json]]:
    """Path and schema of every field that a person would set as one value; lists and maps are set as a whole."""
    for name, child in node.get("properties", {}).items():
        here = f"{path}.{name}".lstrip(".")
        if "properties" in child:
            yield from leaves(child, here)
        else:
            yield here, child


def values(schema: Json, path: str) -> st.SearchStrategy[Any]:
    """What the schema allows at that path."""
    if path in PINS:
        return PINS[path]
    return COMMON[path] | _of_type(schema, path) if path in COMMON else _of_type(schema, path)


def _of_type(schema: Json, path: str) -> st.SearchStrategy[Any]:
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema["type"]:
        case "boolean":
            return st.booleans()
        case "integer":
            low, high = schema.get("minimum", 0), schema.get("maximum", 1 << 31)
            return st.one_of(st.sampled_from([low, high]), st.integers(low, min(high, low + 50)))
        case "array":
            unique = {"map": _keys_of(schema), "set": repr}.get(schema.get("x-kubernetes-list-type", ""))
            most = min(3, schema.get("maxItems", 3))
            return st.lists(values(schema["items"], f"{path}[]"), max_size=most, unique_by=unique)
        case "object" if "properties" in schema:
            given = {name: values(child, f"{path}.{name}") for name, child in schema["properties"].items()}
            must = {name: given.pop(name) for name in schema.get("required", ())}
            return st.fixed_dictionaries(must, optional=given)
        case "object":
            keys, items = st.sampled_from(["a", "example.com/b"]), values(schema["additionalProperties"], f"{path}.*")
            return st.dictionaries(keys, items, max_size=2)
        case "string" if "pattern" in schema:
            text = st.from_regex(schema["pattern"].replace("$", r"\Z"), alphabet=st.characters(max_codepoint=126))
            return text.filter(lambda found: len(found) <= min(40, schema.get("maxLength", 40)))
        case "string":
            return st.sampled_from([text for text in ODD if len(text) <= schema.get("maxLength", 1 << 20)])
        case other:
            raise ValueError(f"{path}: no values for type {other}")


def _keys_of(schema: Json) -> Callable[[Json], tuple[Any, ...]]:
    """What tells the items of a list apart that the server merges by their keys: it refuses two of the same."""
    keys = schema.get("x-kubernetes-list-map-keys", ())
    defaults = {key: schema["items"]["properties"][key].get("default") for key in keys}
    return lambda item: tuple(item.get(key, defaults[key]) for key in keys)


def put(spec: Json, path: str, value: Any) -> Json:
    """The spec with that field set, and what it needs beside it."""
    found = copy.deepcopy(spec)
    here, parts = found, path.split(".")
    for number, part in enumerate(parts[:-1]):
        here = here.setdefault(part, {})
        _fill(here, WITH.get(".".join(parts[: number + 1]), {}))
    _fill(here, WITH.get(path, {}))
    here[parts[-1]] = value
    return found


def _fill(here: Json, more: Json) -> None:
    for name, value in more.items():
        here.setdefault(name, copy.deepcopy(value))


SPEC: Final[Json] = crd.definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
FIELDS: Final = dict(leaves(SPEC))


@st.composite
def changes(draw: st.DrawFn, *, most: int = 3) -> dict[str, Any]:
    """A few fields and a value for each."""
    paths = draw(st.lists(st.sampled_from(sorted(FIELDS)), min_size=1, max_size=most, unique=True))
    return {path: draw(values(FIELDS[path], path)) for path in paths}


def changed(spec: Json, fields: dict[str, Any]) -> Json:
    """The spec after these changes."""
    for path, value in fields.items():
        spec = put(spec, path, value)
    return spec
