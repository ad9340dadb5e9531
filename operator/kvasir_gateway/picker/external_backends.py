"""Which external backends a request may go to now, and which of them rest, as the relay reports them.

Called by the picker, in its event loop. Addresses and keys are the relay's; here are names.
"""

from kvasir_api.model_route import Unavailability
from kvasir_gateway.backends import PATHS, BackendGrant, RelayReport
from kvasir_gateway.choice_records import ChoiceInputs
from kvasir_gateway.choose import EndpointChoice
from kvasir_gateway.picker.destination import RoutableRequest, qualified
from kvasir_gateway.router import RoutedRequest
from kvasir_gateway.routing_table import RoutedService


class ExternalBackends:
    """The backends of one gateway."""

    def __init__(self) -> None:
        self._grants: dict[str, BackendGrant] = {}
        self._resting: frozenset[str] = frozenset()

    def take(self, report: RelayReport) -> None:
        """The backends that the relay has, and how they are."""
        self._grants = {grant.name: grant for grant in report.backends}
        self._resting = frozenset(report.resting)

    @staticmethod
    def alike(request: RoutableRequest) -> tuple[object, ...]:
        """The same for requests of one route and tenant that backends can all have, or none of them."""
        return request.tried, request.path in PATHS, bool(request.relayed)

    def attempt(
        self, service: RoutedService, request: RoutableRequest, *, checked: bool, listens: bool
    ) -> tuple[RoutedRequest | None, Unavailability | None]:
        """The choice of a route's backend, None where it may not have the request, or has failed under it; and why
        others come first. checked: whether the gateway knows by its key who sends it. listens: the relay is there."""
        grant = self._grants.get(service.backend)
        permitted = grant is not None and grant.serves(service.namespace) and (checked or grant.anonymous)
        can = request.is_ours and request.path in PATHS and (listens or bool(request.relayed))
        if not (permitted and can) or qualified(service) in request.tried:
            return None, "Stalled"
        choice = EndpointChoice(addresses=(service.backend,), reason="only")
        rests = qualified(service) in self._resting
        return RoutedRequest(choice=choice, inputs=ChoiceInputs()), "Stalled" if rests else None
