"""Two pods of a service and a router, whose readings and requests a test plays by hand."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from fakes.gateway import pod, service, table
from kvasir_api.prefix_digest import WHOLE, PrefixSet
from kvasir_api.state import MeasuredRates, PrefixDigest, RuntimeState
from kvasir_gateway.choose import ChoicePolicy, EndpointChoice
from kvasir_gateway.router import EndpointRouter
from kvasir_gateway.routing_table import StateReading

ONE, TWO = "10.0.0.1:8000", "10.0.0.2:8000"
TEXT = tuple(number.to_bytes(8) for number in range(40))


@dataclass
class Prompt:
    hashes: tuple[bytes, ...] = TEXT
    most_output_tokens: int = 0
    num_sequences: int = 1
    session: str = ""

    @property
    def num_tokens(self) -> float:
        return 64.0 * len(self.hashes) + 20

    def route_hashes(self, _state: RuntimeState) -> tuple[bytes, ...]:
        return self.hashes


class Rig:
    """Two pods of one service and a router; now is the time."""

    def __init__(self, **policy: Any) -> None:
        self.router = EndpointRouter(policy=ChoicePolicy(**policy), draw=lambda: 0)
        pods = [pod("s", "one", ip="10.0.0.1"), pod("s", "two", ip="10.0.0.2")]
        self.service = table([service("s")], pods).services[0]
        self.readings: dict[str, StateReading] = {}
        self.now, self.number = 100.0, 0

    def read(
        self,
        held: Collection[bytes] = (),
        *,
        refusing: Collection[str] = (),
        instances: tuple[str, str] = ("a", "b"),
        **state: Any,
    ) -> None:
        """Read both pods; the first one holds these prefixes."""
        followed = self.router.followed([ONE, TWO])
        states: dict[str, RuntimeState] = {}
        for address, instance, members in ((ONE, instances[0], held), (TWO, instances[1], ())):
            if address in refusing:
                followed[address].forget()
                continue
            digest = PrefixSet(members)
            told = PrefixDigest(
                entries=len(digest.hashes), checksum=digest.checksum, after=WHOLE, added=b"".join(digest.hashes)
            )
            rates = MeasuredRates(prefill_tokens_per_s=1000.0, decode_slope_s=0.001, stall_fraction=0.5)
            states[address] = RuntimeState(phase="ready", instance=instance, rates=rates, prefixes=told, **state)
            followed[address].take(instance, told)
        self.router.take_readings(states, began_s=self.now)
        self.readings |= {address: StateReading(state=found, at_s=self.now) for address, found in states.items()}

    def lie(self, address: str, state: RuntimeState) -> None:
        """Read one pod again, which states this."""
        self.router.take_readings({address: state}, began_s=self.now + 0.1)
        self.readings[address] = StateReading(state=state, at_s=self.now)

    def send(self, prompt: Prompt | None = None) -> tuple[EndpointChoice, str]:
        """Route one request and forward it; its choice and name."""
        self.number += 1
        self.now += 0.001
        routed = self.router.choose(self.service, prompt or Prompt(), self.readings, now_s=self.now)
        assert routed is not None
        self.router.forward(str(self.number), self.service, routed.choice.addresses[0], routed, now_s=self.now)
        return routed.choice, str(self.number)
