"""The state of one API process: options, phase, model, engine. Shared by the two apps and the process.

The process fills it in during the start; the apps read it. Everything is used on one event loop.
"""

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from kvasir_api import http_apis, openai_errors
from kvasir_api.names import ENV_SERVICE
from kvasir_api.options import ServeOptions
from kvasir_api.rank_state import RankState
from kvasir_api.state import PrefixDigest, QueueBounds, RuntimeState, StartupSeconds
from kvasir_runtime import rank_states
from kvasir_runtime.client.engine_client import EngineClient
from kvasir_runtime.client.hot_prefixes import HotPrefixes
from kvasir_runtime.client.open_sequences import TenantLoads
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.model_profile import ModelProfile
from kvasir_runtime.frontend.structured_outputs.grammar_validator import GrammarValidator
from kvasir_runtime.server.auth import ApiKeys
from kvasir_runtime.server.continuation_keys import ContinuationKeys
from kvasir_runtime.server.key_file import KeyFile
from kvasir_runtime.server.lifecycle import Lifecycle
from kvasir_runtime.server.observability.ended_request_log import EndedRequestLog
from kvasir_runtime.server.observability.metrics import RuntimeMetrics
from kvasir_runtime.server.observability.tracing import Tracer
from kvasir_runtime.server.ops_guard import OpsKeys, ops_keys
from kvasir_runtime.server.peer_prefixes.warmup import PIECE_TOKENS
from kvasir_runtime.server.request_registry import RequestRegistry
from kvasir_runtime.server.senders import Senders
from kvasir_runtime.server.watchdog import Watchdog
from kvasir_runtime.server.worker_threads import WorkerThreads

MOST_INVALID: Final = 3
"""Requests in a row with an output that is not finite, after which no other should be sent here."""


@dataclass(slots=True)
class ServedModel:
    """A model that is being served. fingerprint changes when the same seed may give another answer.

    grammar_validator: finds out whether the grammars of requests can be served. digest: of checkpoint and tokenizer.
    """

    profile: ModelProfile
    client: EngineClient
    max_sequences: int
    fingerprint: str
    start: StartupSeconds
    grammar_validator: GrammarValidator
    folder: Path | None = None
    digest: bytes = b""


@dataclass(slots=True, kw_only=True)
class AppState:
    """names: what clients call the model, the first of them in metrics. created: unix seconds of the start.

    instance: names this process in /state and in the ids of what only it holds. peers: ops ports of replicas that
    served while this one started, with the token of the call to each; peers_taken: others are named too late.
    hot_prefixes: what clients ask most. prefetching: fetches blocks of a replica that leaves.
    preparing: requests that are read and not sent to the engine yet.
    """

    options: ServeOptions
    names: tuple[str, ...]
    created: int
    clock: Callable[[], float] = time.monotonic
    served_model: ServedModel | None = None
    instance: str = field(init=False, default_factory=lambda: http_apis.new_instance(os.environ.get(ENV_SERVICE, "")))
    lifecycle: Lifecycle = field(init=False)
    api_keys: ApiKeys = field(init=False)
    senders: Senders = field(init=False)
    continuation_keys: ContinuationKeys = field(init=False)
    ops_keys: KeyFile[OpsKeys] = field(init=False)
    metrics: RuntimeMetrics = field(init=False)
    threads: WorkerThreads = field(init=False, default_factory=WorkerThreads)
    idle: asyncio.Event = field(init=False)
    registry: RequestRegistry = field(init=False, default_factory=RequestRegistry)
    ended_requests: EndedRequestLog = field(init=False)
    tracing: Tracer | None = field(init=False, default=None)
    watchdog: Watchdog = field(init=False)
    peers: Mapping[str, str] = field(init=False, default_factory=dict)
    peers_taken: bool = field(init=False, default=False)
    hot_prefixes: HotPrefixes = field(init=False, default_factory=lambda: HotPrefixes(PIECE_TOKENS))
    prefetching: asyncio.Task[None] | None = field(init=False, default=None)
    num_active: int = field(init=False, default=0)
    preparing: TenantLoads = field(init=False, default_factory=TenantLoads)

    def __post_init__(self) -> None:
        """The parts that the state creates."""
        self.lifecycle = Lifecycle(self.clock)
        self.watchdog = Watchdog(self.options.watchdog_timeout)
        self.api_keys = ApiKeys(self.options.api_key, self.options.api_key_file)
        self.senders = Senders(self.options, self.api_keys)
        self.continuation_keys = ContinuationKeys(
            self.options.continuation_key_file,
            instance=self.instance,
            receives=bool(self.options.ops_key_file),
            clock=self.clock,
        )
        self.ops_keys = ops_keys(self.options.ops_key_file)
        self.metrics = RuntimeMetrics(self.names[0], self.snapshot, self.clock)
        self.ended_requests = EndedRequestLog(self.instance)
        self.idle = asyncio.Event()
        self.idle.set()

    @property
    def _queue_bounds(self) -> QueueBounds:
        options = self.options
        return QueueBounds(
            requests=options.max_waiting,
            tokens=options.max_waiting_tokens,
            seconds=options.max_waiting_seconds,
            ttft_s=options.ttft_milliseconds / 1000,
        )

    @property
    def unready(self) -> str:
        """Why no new request should be sent here; empty where they should. The phase is that of the lifecycle."""
        if not self.lifecycle.ready:
            return self.lifecycle.message or f"the phase is {self.lifecycle.phase}"
        if self.watchdog.stalled:
            return f"EngineStalled: {self.watchdog.words}"
        in_a_row = self.served_model.client.invalid_in_a_row if self.served_model is not None else 0
        if in_a_row >= MOST_INVALID:
            return f"{openai_errors.MODEL_OUTPUT_INVALID}: the output of {in_a_row} requests in a row was not finite"
        return ""

    def take_peers(self) -> Mapping[str, str]:
        """The peers to be read; others that are named later are refused."""
        self.peers_taken = True
        return self.peers

    def begin_request(self) -> None:
        """A request is being served; the process waits for it before it ends."""
        self.num_active += 1
        self.idle.clear()

    def end_request(self) -> None:
        """A request ended."""
        self.num_active -= 1
        if self.num_active == 0:
            self.idle.set()

    def ready_model(self) -> ServedModel:
        """The served model. Raises Refused while it loads and after the process began to end."""
        refusal = self.lifecycle.refusal()
        if refusal is not None:
            raise Refused(refusal)
        if self.served_model is None:
            raise Refused(openai_errors.internal())
        return self.served_model

    def snapshot(self, prefixes_after: int | None = None) -> RuntimeState:
        """The engine's last state, and the fields that only this process has.

        prefixes_after: the last change of the set of prefixes that the reader has, as `PrefixLog.digest` takes it.
        """
        lifecycle, served_model = self.lifecycle, self.served_model
        state = served_model.client.state if served_model is not None else RuntimeState()
        age_s = self.clock() - served_model.client.last_message_at if served_model is not None else 0.0
        return msgspec.structs.replace(
            state,
            model=self.names[0],
            revision=self.options.pod_revision,
            instance=self.instance,
            served=self.metrics.served,
            queue=self._queue_bounds,
            start=served_model.start if served_model is not None else StartupSeconds(),
            prefixes=self._prefixes(prefixes_after),
            phase=lifecycle.phase,
            progress_fraction=lifecycle.fraction,
            eta_s=lifecycle.eta_s,
            message=lifecycle.message or (self.unready if lifecycle.ready else ""),
            download_bytes=lifecycle.download_bytes,
            downloaded_bytes=lifecycle.downloaded_bytes,
            locked=self.api_keys.locked,
            heartbeat_age_s=round(age_s, 3),
            stalled_s=round(self.watchdog.stalled_s, 3),
            sealing_key=self.continuation_keys.sealing_key,
            continuation_keys=self.continuation_keys.digest,
            ranks=state.ranks or self._starting_ranks(),
        )

    def _starting_ranks(self) -> tuple[RankState, ...]:
        """Those of a node that waits for others, or computes for node 0. Before it has waited none has joined."""
        phase, missing = self.lifecycle.phase, self.lifecycle.missing_nodes
        if phase == "starting" and not missing:
            missing = tuple(node for node in range(self.options.nnodes) if node != self.options.node_rank)
        return rank_states.joined(self.options, missing)

    def _prefixes(self, after: int | None) -> PrefixDigest:
        if self.served_model is None:
            return PrefixDigest()
        by_key, by_header = self.senders.salted_by
        digest = self.served_model.client.prefixes.digest(after)
        return msgspec.structs.replace(digest, by_key=by_key, by_header=by_header)
