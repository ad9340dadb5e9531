"""An AcceleratorClass's podPatches on a finished pod template: JSON Patch (RFC 6902), one operation after the other.

Called when a template is rendered, for the revision's hash and by the faults. What the operator lives by: owned.py.
"""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import jsonpatch
from jsonpointer import JsonPointerException

from kvasir_api.accelerator import PodPatch
from kvasir_kube.kinds import Json
from kvasir_operator.desired.protected_fields import breach

MAX_VALUE: Final = 8192
"""Characters of one value as JSON: the schema cannot bound what may be anything."""
PARENTS: Final[Mapping[str, tuple[tuple[str, type], ...]]] = {
    "metadata": (("annotations", dict),),
    "spec": (
        ("affinity", dict),
        ("hostAliases", list),
        ("imagePullSecrets", list),
        ("initContainers", list),
        ("nodeSelector", dict),
        ("tolerations", list),
        ("topologySpreadConstraints", list),
    ),
}
"""Parts that are there while patches are applied, so that one can add to them whether a service has some or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchedTemplate:
    """template: what came out. effective: operations that changed something. trouble: why it must not be used, with the
    number of the operation, empty when it may."""

    template: Json
    effective: tuple[PodPatch, ...] = ()
    trouble: str = ""


def patched(template: Json, patches: Sequence[PodPatch]) -> PatchedTemplate:
    """The template with all operations applied, which is left as it was itself."""
    now, effective = _with_parents(template), []
    broken: tuple[int, str] | None = None
    for number, patch in enumerate(patches):
        try:
            after = _applied(now, patch)
        except ValueError as error:
            return PatchedTemplate(template=template, trouble=_said(number, patch, str(error)))
        if after == now:
            continue
        effective.append(patch)
        now = after
        why = breach(template, now)
        # Of several that touch one part, the first that left it wrong is named; one that puts it right again clears it.
        broken = (broken or (number, why)) if why else None
    if broken:
        number, why = broken
        return PatchedTemplate(template=template, trouble=_said(number, patches[number], why))
    return PatchedTemplate(template=_without_empty(now, template), effective=tuple(effective))


def _applied(document: Json, patch: PodPatch) -> Json:
    """A copy with one operation applied. Raises ValueError that says why it cannot be."""
    operation: Json = {"op": patch.op, "path": patch.path}
    if patch.op != "remove":
        if patch.value is None:
            raise ValueError("it needs a value")
        if len(json.dumps(patch.value)) > MAX_VALUE:
            raise ValueError(f"its value is longer than {MAX_VALUE} characters")
        if _has_fraction(patch.value):
            raise ValueError("its value has a number with a fraction, which nothing of a pod is")
        operation["value"] = copy.deepcopy(patch.value)
    try:
        after: Json = jsonpatch.JsonPatch([operation]).apply(document)
    except jsonpatch.JsonPatchTestFailed:
        raise ValueError("the test fails: another value is there, or none") from None
    except (jsonpatch.JsonPatchException, JsonPointerException, TypeError, KeyError) as error:
        raise ValueError(f"it does not apply: {error}") from error
    return after


def _said(number: int, patch: PodPatch, why: str) -> str:
    return f"spec.podPatches[{number}] ({patch.op} {patch.path}): {why}"[:1024]


def _has_fraction(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_has_fraction, value.values()))
    if isinstance(value, list):
        return any(map(_has_fraction, value))
    return isinstance(value, float)


def _with_parents(template: Json) -> Json:
    made = copy.deepcopy(template)
    for part, parents in PARENTS.items():
        for name, kind in parents:
            made[part].setdefault(name, kind())
    return made


def _without_empty(made: Json, template: Json) -> Json:
    """Without the parts that were there to be added to and were not."""
    kept = dict(made)
    for part, parents in PARENTS.items():
        spare = {name for name, kind in parents if name not in template[part] and made[part].get(name) == kind()}
        kept[part] = {name: value for name, value in made[part].items() if name not in spare}
    return kept
