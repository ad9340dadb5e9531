"""From the arguments of the process to a running engine: build the runner, report progress, wire the loop.

Called by engine_main. A failed start is reported to every client that sends Hello within a moment, else logged.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kvasir_api import cache_groups
from kvasir_api.options import ServeOptions
from kvasir_api.speculation import draft_model
from kvasir_api.state import RuntimeState, SpeculationState
from kvasir_runtime import rank_states, source
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.scheduler import Scheduler
from kvasir_runtime.core.speculation.speculation import FROM_TEXTS
from kvasir_runtime.engine.chrome_trace import ChromeTraceProfiler
from kvasir_runtime.engine.client_socket import ClientSocket
from kvasir_runtime.engine.interfaces import Runner
from kvasir_runtime.engine.loop import Engine
from kvasir_runtime.engine.peer_prefills import PeerPrefills
from kvasir_runtime.engine.trace import TraceFile
from kvasir_runtime.engine_reports import Progress
from kvasir_runtime.errors import StartError
from kvasir_runtime.step_profiler import StepProfiler
from kvasir_runtime.wire import EngineFacts, EngineFailed, FromEngine, Hello, Shutdown, ToEngine

LOG = logging.getLogger(__name__)
FINAL_MESSAGE_S = 2.0
TARGET_STEP_S: Final = {"cpu": 0.1, "cuda": 0.05}
"""How long streams should wait for a step that computes a prompt too; a shorter one costs throughput."""
MIN_STEP_TOKENS: Final = {"cpu": 64, "cuda": 256}
"""Tokens from which on a step is bound by arithmetic: on cards their rate is 150 to 400 times their bandwidth."""

Build = Callable[[ServeOptions, Callable[[Progress], None]], Runner]


class ShutdownRequested(Exception):
    """A client said Shutdown before the engine was ready."""


class StartupClients:
    """Clients that connect while the model is loading, and the last message that was sent to all of them."""

    def __init__(self, socket: ClientSocket) -> None:
        self._socket = socket
        self._last_message: FromEngine = Progress(phase="starting", progress_fraction=0.0)
        self._present: list[bytes] = []
        self._engine: Engine | None = None

    @property
    def present(self) -> list[bytes]:
        """Clients that sent Hello."""
        return self._present

    def follow(self, engine: Engine) -> None:
        """The engine greets clients from now on; a final message goes to those that it knows."""
        self._engine = engine

    def send(self, message: FromEngine) -> None:
        """Send to all clients, and to those that come later. Raises ShutdownRequested where one sent Shutdown."""
        self._last_message = message
        self.receive(0.0)
        self._present = [client for client in self._present if self._socket.send(client, message)]

    def receive(self, timeout_s: float) -> None:
        """Greet new clients. Requests cannot come before Ready; other messages are ignored."""
        for client, message in self._socket.receive(timeout_s):
            self._handle(client, message)

    def send_final(self, message: EngineFailed) -> bool:
        """Send to all clients, and wait a moment for one where there is none. False if no client came."""
        deadline = time.monotonic() + FINAL_MESSAGE_S
        if self._engine is not None:
            self._present = self._engine.present
        try:
            self.send(message)
            while not self._present and time.monotonic() < deadline:
                self.receive(0.1)
        except ShutdownRequested:
            return True
        return bool(self._present)

    def _handle(self, client: bytes, message: ToEngine) -> None:
        if isinstance(message, Shutdown):
            raise ShutdownRequested
        if isinstance(message, Hello) and client not in self._present and self._socket.send(client, self._last_message):
            self._present.append(client)


def start_engine(options: ServeOptions, build: Build, socket: ClientSocket, clients: StartupClients) -> Engine:
    """The engine with a loaded model; its clients got Ready. Raises StartError, or what else the runner raised."""
    clients.send(Progress(phase="starting", progress_fraction=0.0))
    trace, profiler = _trace(options.trace), _profile(options.profile)
    runner = build(options, clients.send)
    runner.use_profiler(profiler)
    clients.receive(0.0)
    facts = runner.facts
    limits = limits_of(options, facts, runner.hash_salt)
    _warn_of_recent_answers(limits)
    on_gpu = not facts.device.lower().startswith("cpu")
    engine = Engine(
        scheduler=Scheduler(limits, facts.work),
        runner=runner,
        clients=socket,
        state=_state(options, facts, computes_for_peers=limits.hands_over),
        depth=2 if on_gpu else limits.stages,
        trace=trace,
        profiler=profiler,
    )
    if runner.peers is not None and limits.hands_over:
        runner.peers.use_prefill(PeerPrefills(socket.address, facts))
    for client in clients.present:
        engine.greet(client)
    return engine


def _warn_of_recent_answers(limits: Limits) -> None:
    """Where recent answers are to be kept and nothing drafts from them. No reason not to start: answers are the same,
    and a stored service may say so.
    """
    if limits.max_cached_answers and limits.speculation not in FROM_TEXTS:
        LOG.warning(
            "--suffix-decoding-max-cached-requests %d has no effect: nothing drafts from recent answers with the"
            " drafter %s; --speculation suffix does",
            limits.max_cached_answers,
            limits.speculation,
        )


def _trace(path: str) -> TraceFile | None:
    """Opened before the model is loaded, so that a wrong path costs no time. Raises StartError."""
    try:
        return TraceFile(Path(path)) if path else None
    except (OSError, ValueError) as error:
        raise StartError(f"--trace {path}: cannot be written: {getattr(error, 'strerror', None) or error}") from error


def _profile(path: str) -> StepProfiler:
    """Opened before the model is loaded, as a trace is. Raises StartError."""
    try:
        return ChromeTraceProfiler(Path(path)) if path else StepProfiler()
    except (OSError, ValueError) as error:
        raise StartError(f"--profile {path}: cannot be written: {getattr(error, 'strerror', None) or error}") from error


def limits_of(options: ServeOptions, facts: EngineFacts, hash_salt: bytes = b"") -> Limits:
    """What the scheduler may use of this runner. hash_salt: the runner's, a secret.

    Raises StartError where the options name a drafter and the runner cannot verify drafts.
    """
    if facts.no_drafts and options.speculation not in ("auto", "off"):
        raise StartError(f"--speculation {options.speculation}: {facts.no_drafts}; choose auto or off")
    kind = "cpu" if facts.device.lower().startswith("cpu") else "cuda"
    is_encoder = cache_groups.keeps_nothing(facts.attentions)
    return Limits(
        num_blocks=facts.num_blocks,
        block_size=facts.block_size,
        max_batch_tokens=facts.max_batch_tokens,
        max_sequences=facts.max_sequences,
        max_model_len=min(facts.max_model_len, facts.max_cached_tokens),
        prefix_cache=options.prefix_cache and not is_encoder,
        target_step_s=0.0 if options.max_batch_tokens or is_encoder else TARGET_STEP_S[kind],
        min_step_tokens=MIN_STEP_TOKENS[kind],
        min_step_s=facts.weights_copy_s,
        eos_token_ids=tuple(facts.eos_token_ids),
        attentions=facts.attentions,
        host_blocks=facts.host_blocks,
        block_bytes=facts.block_bytes,
        stages=options.pipeline_parallel_size,
        data_ranks=facts.data_ranks,
        hash_salt=hash_salt,
        max_waiting=options.max_waiting,
        max_waiting_s=options.max_waiting_seconds,
        max_waiting_tokens=options.max_waiting_tokens,
        speculation=_drafter(options, facts),
        max_cached_answers=options.suffix_decoding_max_cached_requests,
        fetches_blocks=facts.kv_transfer_port > 0,
    )


def _drafter(options: ServeOptions, facts: EngineFacts) -> str:
    """Of `Limits`. With auto the head in the model's checkpoint drafts where there is one."""
    if facts.no_drafts:
        return "off"
    if options.speculation == "auto" and facts.drafter.weights_bytes:
        return "mtp"
    return "model" if draft_model(options.speculation) else options.speculation


def _state(options: ServeOptions, facts: EngineFacts, *, computes_for_peers: bool) -> RuntimeState:
    name = options.served_model_name[0] if options.served_model_name else source.name_of(options.model)
    kv_tokens = facts.capacity_tokens // facts.data_ranks
    return RuntimeState(
        model=name,
        revision=options.pod_revision,
        phase="ready",
        progress_fraction=1.0,
        eta_s=0.0,
        device=facts.device,
        kernels=facts.kernels,
        fallback=facts.fallback,
        kv_transfer_port=facts.kv_transfer_port,
        kv_prefill=computes_for_peers,
        speculation=SpeculationState(why=facts.no_drafts if options.speculation != "off" else ""),
        ranks=rank_states.loaded(options, facts.rank_sizes, kv_tokens) if facts.rank_sizes else (),
    )
