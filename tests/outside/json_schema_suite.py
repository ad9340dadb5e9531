"""The JSON-Schema-Test-Suite for draft 2020-12, as the source package of jsonschema carries it: `make test-clients`.

Which of its schemas are taken, that no answer under them is invalid, and that no instance which the suite calls invalid
is accepted. Not collected by `make test`, since the package is fetched.
"""

import json
import re
import sys
from decimal import Decimal
from typing import Any, NamedTuple

import jsonschema
import numpy as np
import pytest

from fakes import guided_walks
from kvasir_runtime.guide import validate
from kvasir_runtime.guide.schemas import translate
from kvasir_runtime.guide.vocabulary import Vocabulary
from kvasir_runtime.wire import Grammar
from outside import environment

PACKAGE = "jsonschema==4.26.0"
TESTS = "json/tests/draft2020-12"
NUM_GROUPS = 438
NUM_ACCEPTED = 402
NUM_WALKS = 6
REFUSALS = {
    "leads out of the schema": "a reference to a document elsewhere: nothing is fetched",
    "nsatisfiable": "no text fits",
    "regex parse error": "ECMA's \\c, which llguidance's patterns lack",
}
"""What a refusal says, and why it cannot be otherwise."""
CLOSING = [*b'}]"']
NOT_PYTHON = "optional/ecmascript-regex"
"""A file about patterns that are ECMA's, which the validator in Python reads otherwise."""


class Group(NamedTuple):
    """A schema of the suite with its instances."""

    name: str
    schema: Any
    tests: list[dict[str, Any]]

    @property
    def grammar(self) -> Grammar:
        return Grammar(kind="json_schema", text=json.dumps(self.schema))


@pytest.fixture(scope="session")
def groups() -> list[Group]:
    """All groups, the optional ones included."""
    tests = environment.source(PACKAGE, member=TESTS) / TESTS
    return [
        Group(f"{path.relative_to(tests).with_suffix('')}: {group['description']}", group["schema"], group["tests"])
        for path in sorted(tests.rglob("*.json"))
        for group in json.loads(path.read_text())
    ]


@pytest.fixture(scope="session")
def words() -> Vocabulary:
    return Vocabulary(translate.byte_tokenizer(), {})


@pytest.fixture(scope="session")
def accepted(groups, words) -> dict[str, tuple[Group, Grammar]]:
    """The groups that are taken, with what the engine compiles."""
    verdicts = {group.name: (group, validate.verdict(group.grammar, words)) for group in groups}
    return {name: (group, found.grammar) for name, (group, found) in verdicts.items() if not found.error}


def test_the_number_of_schemas_that_are_taken(groups, accepted, capsys):
    with capsys.disabled():
        sys.stdout.write(f"\n{len(accepted)} of {len(groups)} groups of the 2020-12 suite are taken\n")
    assert len(groups) == NUM_GROUPS
    assert len(accepted) == NUM_ACCEPTED


def test_every_refusal_has_a_reason_that_stands(groups, accepted, words):
    refused = {g.name: validate.verdict(g.grammar, words).error for g in groups if g.name not in accepted}
    assert {name: text for name, text in refused.items() if not any(sign in text for sign in REFUSALS)} == {}


@pytest.mark.timeout(600)
def test_no_answer_is_invalid(accepted, words):
    eos, size = words.tokenizer.eos_token, words.tokenizer.vocab_size
    ended = 0
    for name, (group, grammar) in accepted.items():
        if name.startswith(NOT_PYTHON):
            continue
        validator = jsonschema.Draft202012Validator(group.schema)
        # 0.3 is a multiple of 0.1, though its floating-point number is not.
        exact = jsonschema.Draft202012Validator(json.loads(json.dumps(group.schema), parse_float=Decimal))
        for seed in range(NUM_WALKS):
            guide = guided_walks.matcher_of(grammar, words, eos)
            chance = np.random.default_rng(seed)
            tokens = guided_walks.written(guide, chance, size, eos=eos, closing=CLOSING)
            if tokens is not None:
                ended += 1
                text = bytes(tokens).decode()
                fits = validator.is_valid(json.loads(text)) or exact.is_valid(json.loads(text, parse_float=Decimal))
                assert fits, (name, text)
    assert ended > 0.95 * NUM_WALKS * len(accepted)


def ordered(value: Any, order: dict[str, int]) -> Any:
    """A value with its properties in the order of the schema, in which alone they are written."""
    if isinstance(value, dict):
        names = sorted(value, key=lambda name: order.get(name, len(order)))
        return {name: ordered(value[name], order) for name in names}
    return [ordered(one, order) for one in value] if isinstance(value, list) else value


def names_of(schema: Any, order: dict[str, int]) -> dict[str, int]:
    """Names of properties in the order of their appearance."""
    children = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    if isinstance(schema, dict):
        for keyword in ("properties", "required"):
            for name in schema[keyword] if isinstance(schema.get(keyword), dict | list) else ():
                order.setdefault(name, len(order))
    for child in children:
        names_of(child, order)
    return order


def test_instances_are_what_the_suite_calls_them(accepted, words):
    """None that is invalid may be written, and nearly all that are valid may. Formats of texts are annotations."""
    wrong, right, valid = [], 0, 0
    for name, (group, grammar) in accepted.items():
        for test in group.tests:
            text = json.dumps(ordered(test["data"], names_of(group.schema, {})), ensure_ascii=False).encode()
            guide = guided_walks.matcher_of(grammar, words, words.tokenizer.eos_token)
            fits = all(guide.admits(byte) and not guide.take(byte, room=0).error for byte in text) and guide.may_end()
            valid += test["valid"]
            right += test["valid"] and fits
            if fits and not test["valid"] and not re.match("optional/(format|ecmascript)", name):
                wrong.append((name, test["description"]))
    assert wrong == []
    assert right >= 0.95 * valid
