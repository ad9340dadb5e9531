"""Where references lead: identifiers, anchors, pointers, dynamic scope; and what leads nowhere."""

import pytest

from kvasir_runtime.guide.errors import GrammarError
from kvasir_runtime.guide.schemas.resources import SchemaResources

SCHEMA = {
    "$id": "https://example.com/root.json",
    "$defs": {
        "plain": {"const": 1},
        "a/b~c": {"const": 2},
        "anchored": {"$anchor": "here", "const": 3},
        "other": {
            "$id": "other.json",
            "$anchor": "here",
            "const": 4,
            "$defs": {"inner": {"const": 5}, "list": {"allOf": [{"const": 6}]}},
        },
        "urn": {"$id": "urn:example:x", "$defs": {"in": {"const": 7}}},
        "not one": {"enum": [{"$id": "enum.json"}], "const": 8},
    },
}


@pytest.mark.parametrize(
    ("reference", "const"),
    [
        ("#/$defs/plain", 1),
        ("root.json#/$defs/plain", 1),
        ("https://example.com/root.json#/%24defs/plain", 1),
        ("#/$defs/a~1b~0c", 2),
        ("#here", 3),
        ("other.json", 4),
        ("other.json#here", 4),
        ("other.json#/$defs/inner", 5),
        ("#/$defs/other/$defs/inner", 5),
        ("other.json#/$defs/list/allOf/0", 6),
        ("urn:example:x#/$defs/in", 7),
    ],
)
def test_references(reference, const):
    resources = SchemaResources(SCHEMA)
    assert resources.referred(reference, resources.start.place).schema["const"] == const


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("elsewhere.json", "leads out of the schema"),
        ("enum.json", "leads out of the schema"),
        ("file:///etc/passwd", "leads out of the schema"),
        ("#nothing", "names no anchor"),
        ("#/$defs/nothing", "leads nowhere"),
        ("other.json#/$defs/list/allOf/1", "leads nowhere"),
    ],
)
def test_references_that_lead_nowhere(reference, reason):
    resources = SchemaResources(SCHEMA)
    with pytest.raises(GrammarError, match=reason):
        resources.referred(reference, resources.start.place)


def test_a_reference_is_relative_to_the_resource_that_it_stands_in():
    resources = SchemaResources(SCHEMA)
    place = resources.referred("other.json", resources.start.place).place
    assert place == (
        "https://example.com/other.json",
        ("https://example.com/root.json", "https://example.com/other.json"),
    )
    assert resources.referred("#/$defs/inner", place).schema["const"] == 5
    again = resources.referred("root.json", place).place
    assert again == ("https://example.com/root.json", place.scope), "each resource is in the scope once"


def test_a_dynamic_reference_leads_to_the_outermost_anchor():
    node = {"$id": "node", "$dynamicAnchor": "T", "const": "node", "$defs": {"static": {"$anchor": "S"}}}
    resources = SchemaResources({"$id": "https://example.com/strict", "$dynamicAnchor": "T", "$defs": {"node": node}})
    inner = resources.referred("node", resources.start.place).place
    assert resources.dynamically_referred("#T", inner).schema["$id"] == "https://example.com/strict"
    assert resources.dynamically_referred("#S", inner).schema == {"$anchor": "S"}
    alone = inner._replace(scope=(inner.base,))
    assert resources.dynamically_referred("#T", alone).schema["$id"] == "node"


def test_scopes_are_bounded():
    many = {"$defs": {str(n): {"$id": f"https://example.com/{n}"} for n in range(40)}}
    resources = SchemaResources(many)
    place = resources.start.place
    for number in range(15):
        place = resources.referred(f"https://example.com/{number}", place).place
    with pytest.raises(GrammarError, match="more than 16"):
        resources.referred("https://example.com/20", place)
