"""An engine process for the server's tests: it speaks the wire protocol and echoes each prompt, with faults on demand.

Run as the child of the API process in place of the real engine. It answers with the prompt's ids again and again, one a
step. What it shall do wrong comes from the options: KVASIR_STUB in the environment, as JSON with the fields of Faults.
"""

import os
import sys
import time
from collections import deque
from pathlib import Path

import msgspec
import zmq

from kvasir_api.openai_errors import MODEL_OUTPUT_INVALID
from kvasir_api.state import KvState, RequestTotals, RuntimeState
from kvasir_runtime import wire
from kvasir_runtime.engine_args import EngineArgs
from kvasir_runtime.engine_reports import Progress


class Faults(msgspec.Struct, kw_only=True):
    """step_s: seconds between steps. pace: a file; once it is gone, steps take no time. gate: a file that must exist
    before tokens flow. fail: words to fail with at the start, incurable: whether a retry would fail too. refuse: words
    that every request is refused with. cached: prompt tokens reported as found in the cache. load_gate: a file that
    must exist before it is ready. eos_after: tokens after which requests end by themselves. log: a file that gets a
    line per message heard. invalid: a file; while it exists, the output of every request is not finite.
    waiting: what the state reports. says: a file with the ids to answer with, as JSON, in place of the prompt's; it is
    read for each request."""

    step_s: float = 0.0
    pace: str = ""
    gate: str = ""
    load_gate: str = ""
    fail: str = ""
    incurable: bool = False
    refuse: str = ""
    invalid: str = ""
    cached: int = 0
    eos_after: int = 0
    max_sequences: int = 64
    waiting: int = 0
    log: str = ""
    per_step: int = 1
    says: str = ""


class Sequence:
    """One request being answered."""

    def __init__(self, client: bytes, request: wire.EngineRequest, says: str = "") -> None:
        self.client = client
        self.request = request
        self.done = len(request.generated)
        self.injected = 0
        self.said = tuple(msgspec.json.decode(Path(says).read_bytes())) if says else ()

    def step(self, faults: Faults) -> wire.EngineOutput:
        """Its next tokens."""
        sampling, prompt = self.request.sampling, self.said or tuple(self.request.prompt_ids())
        limit = sampling.max_tokens
        end = len(self.said) or faults.eos_after
        stop = end and not sampling.ignore_eos
        if stop:
            limit = min(limit, max(end, sampling.min_tokens))
        count = min(faults.per_step, limit - self.done)
        tokens = tuple(prompt[(self.done + i) % len(prompt)] for i in range(count))
        self.done += count
        reason: wire.FinishReason | None = None
        if self.done >= limit:
            reason = "stop" if stop and limit < sampling.max_tokens else "length"
        ended_by = 0 if reason == "stop" else None
        injected, self.injected = self.injected, 0
        return wire.EngineOutput(
            request_id=self.request.request_id,
            token_ids=tokens,
            finish_reason=reason,
            stop_token_id=ended_by,
            cached_tokens=faults.cached,
            injected=injected,
        )


class Stub:
    """The process."""

    def __init__(self, launch: EngineArgs, faults: Faults) -> None:
        self.faults = faults
        self.socket = zmq.Context().socket(zmq.ROUTER)
        self.socket.bind(launch.address)
        self.decode = msgspec.msgpack.Decoder(wire.ToEngine).decode
        self.live: dict[str, Sequence] = {}
        self.clients: deque[bytes] = deque(maxlen=4)
        self.totals = 0
        self.phase = "ready"
        self.max_len = int(launch.options.get("max_model_len") or 4096)
        self.stopping = False

    def send(self, client: bytes, message: wire.FromEngine) -> None:
        """One message."""
        self.socket.send_multipart([client, msgspec.msgpack.encode(message)])

    def ready(self) -> wire.Ready:
        """Facts that are recognisable in the banner."""
        facts = wire.EngineFacts(
            device="stub",
            kernels="none",
            dtype="float32",
            block_size=16,
            num_blocks=512,
            max_batch_tokens=512,
            max_model_len=self.max_len,
            max_sequences=self.faults.max_sequences,
            weights_bytes=1 << 20,
            kv_bytes_per_token=64,
            load_s=0.1,
            warm_s=0.0,
        )
        return wire.Ready(facts)

    def state(self) -> RuntimeState:
        """With pinned tokens only while something runs."""
        pinned = sum(16 * (1 + (s.request.prompt_tokens + s.done) // 16) for s in self.live.values())
        return RuntimeState(
            phase="ready",
            kv=KvState(capacity_tokens=8192, pinned_tokens=pinned, free_tokens=8192 - pinned),
            running=len(self.live),
            waiting=self.faults.waiting,
            max_sequences=self.faults.max_sequences,
            max_model_len=self.max_len,
            totals=RequestTotals(arrivals=self.totals, prompt_tokens=7),
            device="stub",
            kernels="none",
        )

    def hear(self) -> None:
        """Everything that came."""
        while self.socket.poll(0):
            client, payload = self.socket.recv_multipart()
            message = self.decode(payload)
            if self.faults.log:
                with Path(self.faults.log).open("ab") as log:
                    log.write(msgspec.json.encode(message) + b"\n")
            self.act(client, message)

    def act(self, client: bytes, message: wire.ToEngine) -> None:
        """One message."""
        match message:
            case wire.Hello():
                self.clients.append(client)
                self.send(client, self.first_words())
                self.send(client, wire.StepOutputs((), self.state()))
            case wire.Submit(request):
                self.totals += 1
                invalid = bool(self.faults.invalid) and Path(self.faults.invalid).exists()
                if self.faults.refuse or invalid:
                    event = wire.EngineOutput(
                        request_id=request.request_id,
                        finish_reason="error",
                        message=self.faults.refuse or "the output is not finite",
                        code=MODEL_OUTPUT_INVALID if invalid else "",
                    )
                    self.send(client, wire.StepOutputs((event,), self.state()))
                else:
                    self.live[request.request_id] = Sequence(client, request, self.faults.says)
                    self.send(client, wire.StepOutputs((), self.state()))
            case wire.Inject(request_id, token_ids):
                if request_id in self.live:
                    self.live[request_id].injected += len(token_ids)
            case wire.Abort(request_id):
                self.live.pop(request_id, None)
                self.send(client, wire.StepOutputs((), self.state()))
            case wire.Shutdown():
                self.stopping = True

    def first_words(self) -> wire.FromEngine:
        """Ready, or the last words."""
        gate = self.faults.load_gate
        if gate and not Path(gate).exists():
            return Progress("loading", 0.25, 3.0)
        if self.faults.fail:
            self.stopping = True
            return wire.EngineFailed(self.faults.fail, self.faults.incurable)
        return self.ready()

    def step(self) -> None:
        """One step of all that live, when the gate is open."""
        if self.faults.gate and not Path(self.faults.gate).exists():
            return
        by_client: dict[bytes, list[wire.EngineOutput]] = {}
        for sequence in list(self.live.values()):
            event = sequence.step(self.faults)
            by_client.setdefault(sequence.client, []).append(event)
            if event.finish_reason is not None:
                del self.live[event.request_id]
        for client, events in by_client.items():
            self.send(client, wire.StepOutputs(tuple(events), self.state()))

    def run(self) -> None:
        """Until told to stop or orphaned."""
        gate, parent = self.faults.load_gate, os.getppid()
        while not self.stopping and os.getppid() == parent:
            self.socket.poll(1 if self.live else 10)
            self.hear()
            if gate and Path(gate).exists():
                gate = ""
                for client in self.clients:
                    self.send(client, self.first_words())
                    self.send(client, wire.StepOutputs((), self.state()))
            if self.live:
                self.step()
                if not self.faults.pace or Path(self.faults.pace).exists():
                    time.sleep(self.faults.step_s)
        self.socket.close(linger=200)


if __name__ == "__main__":
    line = sys.stdin.readline()
    Stub(
        msgspec.json.decode(line, type=EngineArgs),
        msgspec.json.decode(os.environ.get("KVASIR_STUB", "{}"), type=Faults),
    ).run()
