"""The PersistentVolumeClaim of a model, as decisions see it. Called by the loop when it observes."""

from dataclasses import dataclass
from typing import Final

from kvasir_kube.kinds import Json

OF_ONE_NODE: Final = frozenset({"ReadWriteOnce", "ReadWriteOncePod"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelClaim:
    """found: it exists. bound: it has its volume. of_one_node: only one node at a time may mount it."""

    found: bool = True
    bound: bool = True
    of_one_node: bool = False


def model_claim(obj: Json) -> ModelClaim:
    """A claim object as a ModelClaim."""
    status = obj.get("status") or {}
    modes = set(status.get("accessModes") or (obj.get("spec") or {}).get("accessModes") or ())
    return ModelClaim(bound=status.get("phase") == "Bound", of_one_node=bool(modes) and modes <= OF_ONE_NODE)
