"""What the engine's loop requires, as protocols: a runner and the clients. Tests pass fakes."""

from collections.abc import Sequence
from typing import Any, Protocol

from kvasir_runtime.core.plan import HostChanges, StepPlan, StepResults
from kvasir_runtime.runner.kv_transfer.interface import Prefill
from kvasir_runtime.step_profiler import StepProfiler
from kvasir_runtime.wire import EngineFacts, FromEngine, Grammar, ToEngine


class Grammars(Protocol):
    """Compiles the grammars that answers must follow, while the engine goes on."""

    def compile(self, request_id: str, grammar: Grammar) -> None:
        """Begin to compile for a request; never waits."""

    def ready(self, request_id: str) -> str | None:
        """None while it is compiled, "" when it is, else why it cannot be."""

    def drop(self, request_id: str) -> None:
        """A request ended; unknown ids are ignored."""


class Peers(Protocol):
    """Other replicas of the service, with which blocks are exchanged."""

    def use_keys(self, keys: tuple[bytes, ...]) -> None:
        """Keys that the replicas share, of which the first is used; never waits."""

    def use_prefill(self, prefill: Prefill) -> None:
        """Compute prompts for them in this way from now on; never waits."""


class Runner(Protocol):
    """Computes plans on a device, in the order of their launches."""

    @property
    def grammars(self) -> Grammars | None:
        """None where grammars need no compilation."""

    @property
    def facts(self) -> EngineFacts:
        """Fixed for the life of the runner."""

    @property
    def hash_salt(self) -> bytes:
        """Secret from which hashes of blocks begin; empty where the host keeps no blocks."""

    @property
    def peers(self) -> Peers | None:
        """None where no blocks are exchanged."""

    def host_changes(self) -> HostChanges | None:
        """What the host holds and did not at the last call, and the reverse; None for no difference. Never waits."""

    def forget_host(self) -> None:
        """Erase what the host holds, and what launched plans are still to copy there; never waits."""

    def launch(self, plan: StepPlan) -> Any:
        """Begin a step after all launched before; never waits for the device. Returns what collect() takes.

        Copies to and from the host begin too, whatever becomes of the step.
        """

    def collect(self, handle: Any) -> StepResults:
        """Wait for a launched step, in the order of launch, and not for copies to and from the host.

        With a plan that computes nothing, and with none behind it, it waits a few milliseconds for them.
        """

    @property
    def failure(self) -> str:
        """Why no step can be computed any more, in one line; "" while they can."""

    @property
    def has_idle_work(self) -> bool:
        """Whether there is work left that speeds up later steps and that no step should wait for."""

    def do_idle_work(self) -> None:
        """Do one piece of it. Called while nothing is launched."""

    def use_profiler(self, profiler: StepProfiler) -> None:
        """Report from now on what the time of a step goes into."""


class Clients(Protocol):
    """The API processes on the other side of the socket, each known by an address."""

    def receive(self, timeout_s: float) -> Sequence[tuple[bytes, ToEngine]]:
        """Everything that came, in order; waits at most timeout_s for the first message, 0 does not wait."""

    def send(self, client: bytes, message: FromEngine) -> bool:
        """Queue a message; never waits. False when the client is gone."""
