"""A Secret that the operator makes in a namespace, for all of its services there: what has to be in it. Pure.

A namespace is the border: who may create pods in it can mount every Secret of it.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Final

from kvasir_api import names
from kvasir_kube.kinds import Json

MANAGED: Final[Mapping[str, str]] = {names.LABEL_PART_OF: names.PART_OF, names.LABEL_MANAGED_BY: names.MANAGER}


def namespace_secret(
    namespace: str, name: str, owners: Sequence[Json], content: Mapping[str, bytes], *, kind: str = "Opaque"
) -> Json:
    """The Secret as a manifest. owners: services there, with the last of which it goes. content: by entry."""
    references = [
        {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "name": one["metadata"]["name"],
            "uid": one["metadata"]["uid"],
        }
        for one in owners
    ]
    return {
        "metadata": {
            "namespace": namespace,
            "name": name,
            "labels": dict(MANAGED),
            "ownerReferences": references,
        },
        "type": kind,
        "data": {entry: base64.b64encode(value).decode() for entry, value in content.items()},
    }


def has_content(found: Json, secret: Json) -> bool:
    """Whether a Secret as it was read has the owners, labels and entries of a manifest."""
    metadata, wanted = found.get("metadata") or {}, secret["metadata"]
    owners = {one.get("uid") for one in metadata.get("ownerReferences") or () if one.get("kind") == names.KIND}
    return (
        owners == {one["uid"] for one in wanted["ownerReferences"]}
        and wanted["labels"].items() <= (metadata.get("labels") or {}).items()
        and secret["data"].items() <= (found.get("data") or {}).items()
    )
