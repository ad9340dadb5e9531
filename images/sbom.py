"""Writes the bill of materials of an image to standard output: `python sbom.py IMAGE SITE_PACKAGES…`.

Run while an image is built, before the project can be imported: standard library only. CycloneDX 1.6 as JSON, of the
Python distributions that lie in the directories, each with its package URL, its license where it states an SPDX
expression, and what it requires of the others. It has no time and no serial number, so that equal images have equal
documents. What the base image brings is not in it: Debian's packages, of which it has its own list, and Python.
"""

import json
import re
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import Distribution, distributions
from typing import Any, Final

PROJECT: Final = "kvasir-serving"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def document(image: str, found: Iterable[Distribution]) -> dict[str, Any]:
    """The CycloneDX document of an image with these distributions.

    ValueError where one of them is there twice, or the project is not among them.
    """
    listed = list(found)
    known = {normalized(item.name): item for item in listed}
    if len(known) != len(listed):
        raise ValueError(f"{len(listed)} distributions have {len(known)} names: one of them is installed twice")
    if PROJECT not in known:
        raise ValueError(f"{PROJECT} is not among the {len(known)} distributions")
    references = {name: f"pkg:pypi/{name}@{item.version}" for name, item in sorted(known.items())}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {"type": "container", "bom-ref": image, "name": image, "version": known[PROJECT].version}
        },
        "components": [_component(references[name], name, known[name]) for name in references],
        "dependencies": [
            {"ref": image, "dependsOn": [references[PROJECT]]},
            *({"ref": references[name], "dependsOn": _required(known[name], references)} for name in references),
        ],
    }


def normalized(name: str) -> str:
    """A distribution's name as PyPA's name normalization has it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _component(reference: str, name: str, item: Distribution) -> dict[str, Any]:
    component = {"type": "library", "bom-ref": reference, "name": name, "version": item.version, "purl": reference}
    expression = item.metadata.get("License-Expression")
    return {**component, "licenses": [{"expression": expression}]} if expression else component


def _required(item: Distribution, references: dict[str, str]) -> list[str]:
    """Those that are there of what a distribution may require, extras included."""
    names = {normalized(found[0]) for text in item.requires or () if (found := _NAME.match(text))}
    return sorted(references[name] for name in names & references.keys() - {normalized(item.name)})


def main(arguments: Sequence[str]) -> int:
    """2 without an image and a directory; else 0, or an error that says what is wrong with what is installed."""
    if len(arguments) < 2:
        sys.stderr.write("usage: sbom.py IMAGE SITE_PACKAGES…\n")
        return 2
    json.dump(document(arguments[0], distributions(path=list(arguments[1:]))), sys.stdout, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
