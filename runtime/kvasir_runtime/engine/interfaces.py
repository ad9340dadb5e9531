"""What the engine's loop needs from the world, as protocols: a runner and the clients. Tests bring fakes."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol

from kvasir_runtime.core.plan import StepPlan, StepResults
from kvasir_runtime.step_profiler import StepProfiler
from kvasir_runtime.wire import FromEngine, Grammar, ToEngine


class Facts(Protocol):
    """What is known of a runner once its model is loaded, for limits, banner and Ready; units are in the names."""

    @property
    def device(self) -> str: ...

    @property
    def kernels(self) -> str: ...

    @property
    def fallback(self) -> str: ...

    @property
    def dtype(self) -> str: ...

    @property
    def block_size(self) -> int: ...

    @property
    def num_blocks(self) -> int: ...

    @property
    def max_model_len(self) -> int: ...

    @property
    def max_sequences(self) -> int: ...

    @property
    def max_batch_tokens(self) -> int: ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...

    @property
    def weights_bytes(self) -> int: ...

    @property
    def quantization(self) -> str: ...

    @property
    def kv_bytes_per_token(self) -> int: ...

    @property
    def hidden_size(self) -> int: ...

    @property
    def head(self) -> Literal["vocabulary", "labels", "none"]: ...

    @property
    def num_labels(self) -> int: ...

    @property
    def load_s(self) -> float: ...

    @property
    def warm_s(self) -> float: ...


class Grammars(Protocol):
    """Compiles the grammars that answers must follow, while the engine goes on."""

    def compile(self, request_id: str, grammar: Grammar) -> None:
        """Begin to compile for a request; never waits."""

    def ready(self, request_id: str) -> str | None:
        """None while it is compiled, "" when it is, else why it cannot be."""

    def drop(self, request_id: str) -> None:
        """A request ended, or was none of those that asked."""


class Runner(Protocol):
    """Computes plans on a device, in the order of their launches."""

    @property
    def grammars(self) -> Grammars | None:
        """None where requests that are guided need not be waited for."""

    @property
    def facts(self) -> Facts:
        """Fixed for the life of the runner."""

    def launch(self, plan: StepPlan) -> Any:
        """Begin a step after all launched before; never waits for the device. Returns what collect() takes."""

    def collect(self, handle: Any) -> StepResults:
        """Wait for a launched step, in the order of launch."""

    def use_profiler(self, profiler: StepProfiler) -> None:
        """Report from now on what the time of a step goes into."""


class Clients(Protocol):
    """The API processes on the other side of the socket, each known by an address."""

    def receive(self, timeout_s: float) -> Sequence[tuple[bytes, ToEngine]]:
        """Everything that came, in order; waits at most timeout_s for the first message, 0 does not wait."""

    def send(self, client: bytes, message: FromEngine) -> bool:
        """Queue a message; never waits. False when the client is gone."""
