"""Decides which fields of a pod this node honours, relaxes or refuses; an unknown field is always refused.

The table is `supported_fields.POD`; the worker checks a pod before any container starts.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvasir_kube.kinds import Json


@dataclass(frozen=True, slots=True)
class Honoured:
    """The field, with everything below it, means what it means in Kubernetes."""


@dataclass(frozen=True, slots=True)
class Relaxed:
    """Accepted but not enforced; `why` describes what happens instead."""

    why: str


@dataclass(frozen=True, slots=True)
class OneOf:
    """Honoured with these values only; any other value is refused."""

    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Each:
    """A list or map whose members all follow one rule."""

    rule: "Rule"


Rule = Honoured | Relaxed | OneOf | Each | Mapping[str, "Rule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldFinding:
    """One field that is not simply honoured: its path, the sentence, and whether the pod must be refused for it."""

    path: str
    why: str
    refused: bool


def refusal(findings: tuple[FieldFinding, ...]) -> str | None:
    """One sentence naming every refused field path, or None when the pod may run."""
    refused = [f"{finding.path}: {finding.why}" for finding in findings if finding.refused]
    return "the process node does not honour " + "; ".join(refused) if refused else None


def findings(spec: Json, table: Mapping[str, Rule]) -> tuple[FieldFinding, ...]:
    """Every relaxed or refused field of a pod spec, in the order of the spec.

    Empty values ({} [] null false "") request nothing.
    """
    return tuple(_walk(spec, table, "spec"))


def _walk(value: Any, rule: Rule, path: str) -> Iterator[FieldFinding]:
    match rule:
        case Honoured():
            return
        case Relaxed(why):
            yield FieldFinding(path=path, why=why, refused=False)
        case OneOf(values):
            if value not in values:
                yield FieldFinding(
                    path=path, why=f"{value!r} is not one of {', '.join(map(repr, values))}", refused=True
                )
        case Each(member):
            items = value.items() if isinstance(value, Mapping) else enumerate(value)
            for index, item in items:
                yield from _walk(item, member, f"{path}[{index}]")
        case _:
            yield from _walk_object(value, rule, path)


def _walk_object(value: Json, rule: Mapping[str, Rule], path: str) -> Iterator[FieldFinding]:
    for name, field in value.items():
        if name in rule:
            if field is not None:
                yield from _walk(field, rule[name], f"{path}.{name}")
        elif field not in (None, False, "", 0) and field != {} and field != []:
            yield FieldFinding(path=f"{path}.{name}", why="this field is not known here", refused=True)
