"""Which services claim a model name. The store keeps it up to date, so that a conflict is found without a full scan."""

from collections.abc import Mapping

from kvasir_api.served_names import NameClaim, NameConflict, conflict, name_claims, qualified_name
from kvasir_kube.kinds import Json, Key, key


class NameIndex:
    """Claims of the services that are not about to go, by model name. reserved: namespaces by the names that are theirs
    alone."""

    def __init__(self, reserved: Mapping[str, str]) -> None:
        self.reserved = reserved
        self._claims: dict[str, dict[Key, NameClaim]] = {}
        self._qualified: dict[str, Key] = {}

    def add(self, service: Json) -> None:
        """The service claims its names, unless it is about to go."""
        if not service["metadata"].get("deletionTimestamp"):
            self._qualified[qualified_name(*key(service))] = key(service)
            for claim in name_claims(service):
                self._claims.setdefault(claim.served_name, {})[key(service)] = claim

    def remove(self, service: Json) -> None:
        """The service gives its names up."""
        self._qualified.pop(qualified_name(*key(service)), None)
        for claim in name_claims(service):
            claims = self._claims.get(claim.served_name, {})
            claims.pop(key(service), None)
            if not claims:
                self._claims.pop(claim.served_name, None)

    def conflicts(self, service: Json) -> tuple[NameConflict, ...]:
        """The names of a service that it does not own."""
        found = [self._conflict(claim, key(service)) for claim in name_claims(service)]
        return tuple(one for one in found if one is not None)

    def _conflict(self, mine: NameClaim, name: Key) -> NameConflict | None:
        qualified = self._qualified.get(mine.served_name, name)
        if qualified != name:
            return NameConflict(
                served_name=mine.served_name, holder=mine.served_name, refused=qualified[0] != mine.namespace
            )
        claims = self._claims.get(mine.served_name, {})
        others = [claim for where, claim in claims.items() if where != name]
        return conflict(mine, others, reserved_for=self.reserved.get(mine.served_name, ""))
