"""From pydantic's JSON schema to the structural schema that a CustomResourceDefinition needs.

Structural means: no $ref, no anyOf for null, no title, a type at every level. Pure; called by crd.py and the tests.
"""

from typing import Any, Final

from pydantic import BaseModel

Schema = dict[str, Any]

MANY: Final = 2**53 - 1
"""A bound that only keeps readers of JSON right, and says nothing to a person."""

_KEPT: Final = (
    "type", "format", "description", "default", "enum", "minimum", "maximum", "minLength", "maxLength", "pattern", "minItems", "maxItems",
    "maxProperties", "x-kubernetes-validations", "x-kubernetes-list-type", "x-kubernetes-list-map-keys",
    "x-kubernetes-preserve-unknown-fields",
)  # fmt: skip


def structural(model: type[BaseModel]) -> Schema:
    """The structural schema of a model, with descriptions that end in unit, default and range where there are any.

    Raises ValueError for a construct that a structural schema cannot express (a union of types, a recursive model).
    """
    document = model.model_json_schema(by_alias=True)
    return _convert(document, document.get("$defs", {}), ())


def _convert(node: Schema, definitions: dict[str, Schema], seen: tuple[str, ...]) -> Schema:
    if "$ref" in node:
        name = node["$ref"].rsplit("/", 1)[-1]
        if name in seen:
            raise ValueError(f"model {name} contains itself: a structural schema cannot")
        node = {**definitions[name], **{key: value for key, value in node.items() if key != "$ref"}}
        seen = (*seen, name)
    if "anyOf" in node:
        node = _without_null(node)
        return _convert(node, definitions, seen)
    out: Schema = {key: node[key] for key in _KEPT if key in node and not (key == "default" and node[key] is None)}
    if isinstance(out.get("default"), dict):
        # A field without a value is absent: null has no type.
        out["default"] = {key: value for key, value in out["default"].items() if value is not None}
    if "enum" in node and "type" not in node:
        raise ValueError(f"enum without a type: {node['enum']}")
    if "properties" in node:
        out["properties"] = {key: _convert(value, definitions, seen) for key, value in node["properties"].items()}
        if required := node.get("required"):
            out["required"] = required
    if "items" in node:
        out.setdefault("x-kubernetes-list-type", "atomic")
        out["items"] = _convert(node["items"], definitions, seen)
    values = node.get("additionalProperties") or next(iter(node.get("patternProperties", {}).values()), None)
    if isinstance(values, dict):
        out["additionalProperties"] = _convert(values, definitions, seen)
    if "type" not in out and "x-kubernetes-preserve-unknown-fields" not in out:
        raise ValueError(f"no type at {node}")
    if out.get("type") == "integer":
        out["format"] = "int64"
    out["description"] = _description(node, out)
    return {key: value for key, value in out.items() if value != "" or key == "default"}


def _without_null(node: Schema) -> Schema:
    options = [option for option in node["anyOf"] if option.get("type") != "null"]
    if len(options) != 1:
        raise ValueError(f"a union of types is not structural: {node['anyOf']}")
    rest = {key: value for key, value in node.items() if key not in ("anyOf", "default")}
    return {**options[0], **rest}


def _description(node: Schema, out: Schema) -> str:
    """The sentence of the declaration, then unit and range: kubectl explain prints neither by itself."""
    facts = []
    if unit := node.get("x-unit"):
        facts.append(f"Unit: {unit}.")
    if "minimum" in out and out.get("maximum", MANY) < MANY:
        facts.append(f"Range: {out['minimum']} to {out['maximum']}.")
    if "default" in out and not isinstance(out["default"], dict | list) and out["default"] != "":
        facts.append(f"Default: {str(out['default']).lower() if isinstance(out['default'], bool) else out['default']}.")
    return " ".join([node.get("description", ""), *facts]).strip()
