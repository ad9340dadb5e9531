"""Which services claim a model name. The store keeps it up to date, so that a conflict is found without a full scan."""

from kvasir_api.served_names import NameClaim, name_claims, owners
from kvasir_kube.kinds import Json, Key, key


class NameIndex:
    """Claims of the services that are not about to go, by model name."""

    def __init__(self) -> None:
        self._claims: dict[str, dict[Key, NameClaim]] = {}

    def add(self, service: Json) -> None:
        """The service claims its names, unless it is about to go."""
        if not service["metadata"].get("deletionTimestamp"):
            for claim in name_claims(service):
                self._claims.setdefault(claim.served_name, {})[key(service)] = claim

    def remove(self, service: Json) -> None:
        """The service gives its names up."""
        for claim in name_claims(service):
            claims = self._claims.get(claim.served_name, {})
            claims.pop(key(service), None)
            if not claims:
                self._claims.pop(claim.served_name, None)

    def holder(self, service: Json) -> NameClaim | None:
        """The claim of another service to one of this one's names; None where this one holds all of them."""
        for mine in name_claims(service):
            found = owners([mine, *self._claims.get(mine.served_name, {}).values()])[mine.served_name]
            if (found.namespace, found.name) != key(service):
                return found
        return None
