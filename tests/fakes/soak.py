"""Engines under pressure that share a second tier on the host, and what disturbs them between two steps.

Each has a cache that is too small for its requests, so that they are preempted, and the file is too small for both.
"""

import os
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from fakes.by_hand import runner_of
from fakes.host_file import use_host_file
from fakes.kv_peers import use_peers
from fakes.serving import request
from kvasir_api.state import RuntimeState
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.plan import StepPlan
from kvasir_runtime.core.scheduler import Scheduler
from kvasir_runtime.runner.kv_offload.file_store import SUFFIX, FileStore, open_store
from kvasir_runtime.runner.kv_transfer.peer_transfers import PeerTransfers
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.wire import EngineRequest

NAME = "0f" * 16
BLOCK_SIZE = 8


@dataclass(slots=True)
class SoakEngine:
    """A scheduler and a real runner, driven as the loop does it. host_bytes: 0 for no second tier. step_s: what every
    step seems to take; with a large one, copying is always the quicker way. exchanges: blocks, with other replicas.
    """

    model: Path
    folder: Path
    num_blocks: int
    max_sequences: int
    host_bytes: int = 0
    depth: int = 1
    prefix_cache: bool = True
    step_s: float = 0.01
    exchanges: bool = False
    transfers: PeerTransfers | None = None
    new_store: Callable[[Path, str, int, int], FileStore] = open_store
    now: float = 0.0
    answers: dict[str, list[int]] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)
    cached: dict[str, int] = field(default_factory=dict)
    runner: ModelRunner = field(init=False)
    scheduler: Scheduler = field(init=False)
    flight: deque[tuple[StepPlan, Any]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        """A start: what is in the file is found again."""
        self.runner = runner_of(
            self.model, num_blocks=self.num_blocks, block_size=BLOCK_SIZE, max_sequences=self.max_sequences
        )
        if self.exchanges:
            self.transfers = use_peers(self.runner, self.folder, self.host_bytes)
        elif self.host_bytes:
            use_host_file(self.runner, self.folder, self.host_bytes, name=NAME, new_store=self.new_store)
        facts = self.runner.facts
        limits = Limits(
            num_blocks=facts.num_blocks,
            block_size=facts.block_size,
            max_batch_tokens=64,
            max_sequences=facts.max_sequences,
            max_model_len=facts.max_model_len,
            prefix_cache=self.prefix_cache,
            eos_token_ids=facts.eos_token_ids,
            attentions=facts.attentions,
            host_blocks=facts.host_blocks,
            hash_salt=self.runner.hash_salt,
            fetches_blocks=self.exchanges,
        )
        self.scheduler = Scheduler(limits)

    @property
    def state(self) -> RuntimeState:
        """As /state would have it."""
        return self.scheduler.report(RuntimeState())

    def submit(self, request: EngineRequest) -> None:
        """A request that fits."""
        self.answers[request.request_id] = []
        assert self.scheduler.submit(request, self.now) is None

    def answer(self, name: str, prompt: list[int], num_tokens: int = 20, **fields: object) -> list[int]:
        """Of one request, greedy unless told otherwise; at its end nothing is left to do, copies included."""
        self.submit(request(name, prompt, max_tokens=num_tokens, ignore_eos=True, **fields))
        while self.step():
            pass
        assert self.ended[name] == "length"
        return self.answers[name]

    def step(self) -> bool:
        """As the loop of the engine; False when there was nothing to do."""
        self.now += self.step_s
        while len(self.flight) < self.depth:
            changes = self.runner.host_changes()
            if changes is not None:
                self.scheduler.host.changed(changes)
            plan = self.scheduler.plan(self.now)
            if plan is None:
                break
            # As a plan reaches another rank.
            plan = msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=StepPlan)
            self.flight.append((plan, self.runner.launch(plan)))
        if not self.flight:
            return False
        for event in self.scheduler.commit(self.runner.collect(self.flight.popleft()[1]), self.now):
            self.answers[event.request_id] += event.token_ids
            self.cached[event.request_id] = event.cached_tokens
            if event.finish_reason is not None:
                self.ended[event.request_id] = event.finish_reason
        kv, host = self.state.kv, self.state.kv_host
        assert kv.pinned_tokens + kv.cached_tokens + kv.free_tokens == kv.capacity_tokens
        assert host.cached_tokens + host.free_tokens == host.capacity_tokens
        return True

    def forget(self) -> None:
        """As the message of a client."""
        self.scheduler.forget()
        self.runner.forget_host()


def damage(folder: Path, chance: random.Random, count: int) -> None:
    """Turn some bits of the file that engines share, in its header, its table or its blocks."""
    path = folder / f"{NAME}{SUFFIX}"
    size = path.stat().st_size or 8192  # empty for a moment while it is made
    with path.open("r+b", buffering=0) as file:
        for _ in range(count):
            place = chance.choice([chance.randrange(120), chance.randrange(8192), *[chance.randrange(size)] * 8])
            byte = os.pread(file.fileno(), 1, place)
            os.pwrite(file.fileno(), bytes([(byte or b"\0")[0] ^ 1 << chance.randrange(8)]), place)
