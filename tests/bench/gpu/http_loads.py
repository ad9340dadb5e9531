"""Loads through HTTP against `kvasir serve` in a process of its own, and what its start takes, cold and warm."""

import asyncio
import re
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, cast

from tokenizers import Tokenizer

from bench.gpu import floors
from bench.gpu.book import Cell, Goal, failed, measured, skipped
from bench.gpu.section import NO_TIME, Context
from bench.servers import Running, serving
from kvasir_runtime.bench import load_generator
from kvasir_runtime.bench.metrics import BenchmarkMetrics, RequestResult, benchmark_metrics
from kvasir_runtime.bench.workload import Workload, WorkloadRequest, requests

BIN: Final = Path(sys.executable).parent
CROWD_GOALS: Final = {
    (64, 128, 128): Goal(sense="at least", value=10_000.0),
    (256, 1000, 1000): Goal(sense="ratio", value=0.78),
}
FP8_GOALS: Final = {(64, 128, 128): Goal(sense="at least", value=17_000.0)}
CROWD_FIRST_TOKEN: Final = Goal(sense="at most", value=0.1)
FIRST_TOKEN_S: Final = 10e-3
ADDED: Final = 64
START_S: Final = 40.0
FAR_S: Final = 90.0
LEAST_S: Final = 15.0
_PARTS: Final = re.compile(r"load ([\d.]+), warm-up ([\d.]+)")
_SIZE: Final = re.compile(r"KV cache +([\d,]+) tokens")


def crowds(context: Context) -> Iterator[Cell]:
    """The time to the first token alone, then each load."""
    sizes = context.sizes
    first = f"first token over HTTP, {sizes.first_token[0]} tokens"
    names = {crowd: f"{crowd[0]} clients over HTTP, {crowd[2]} in, {crowd[3]} out" for crowd in sizes.crowds}
    if context.left_s < (START_S if sizes.name == "full" else 1.0):
        yield from (skipped("serving", name, NO_TIME) for name in (first, *names.values()))
        return
    with ExitStack() as stack:
        base = stack.enter_context(_Server(context, "off"))
        length, count = sizes.first_token
        alone = _asked(
            context, base, Workload(requests=count, concurrency=1, prompt_tokens=(length,) * 2, output_tokens=(4, 4))
        )
        floor = floors.prefill(length, 0, context.work, context.head, context.weight_bytes, context.ceilings())
        yield _first_token(first, alone, floor)
        for crowd, name in names.items():
            if context.left_s < (LEAST_S if sizes.name == "full" else 1.0):
                yield skipped("serving", name, NO_TIME)
                continue
            yield from _crowd(context, base, crowd, name)


def sweep(context: Context) -> Iterator[Cell]:
    """The same requests by ever more clients, in 16 bits and, where the engine has it for this device, in fp8."""
    sizes = context.sizes
    for label, options in ((sizes.dtype, ()), ("fp8", ("--quantization", "fp8"))):
        names = {clients: f"{clients} clients over HTTP, {label}" for clients in sizes.sweep}
        if context.left_s < (START_S if sizes.name == "full" else 1.0):
            yield from (skipped("sweep", name, NO_TIME) for name in names.values())
            continue
        try:
            with _Server(context, "off", ("--max-sequences", str(max(sizes.sweep)), *options)) as base:
                for clients, name in names.items():
                    if context.left_s < (LEAST_S if sizes.name == "full" else 1.0):
                        yield skipped("sweep", name, NO_TIME)
                        continue
                    crowd = (clients, max(4, 2 * clients), *sizes.sweep_lengths)
                    yield from _crowd(context, base, crowd, name, "sweep", label)
        except RuntimeError as error:
            yield failed("sweep", f"clients over HTTP, {label}", str(error))


def far_follow_ups(context: Context) -> Iterator[Cell]:
    """A short text behind a long one that is cached: as text, which the server makes into tokens, and as tokens."""
    sizes = context.sizes
    names = {what: f"first token behind cached {sizes.far_prefix} over HTTP, {what}" for what in ("text", "tokens")}
    if context.left_s < (FAR_S if sizes.name == "full" else 1.0):
        yield from (skipped("long", name, NO_TIME) for name in names.values())
        return
    shared = requests(_long(sizes.far_prefix), seed=1)[0].prompt
    with _Server(context, "off", max_model_len=context.far_model_len) as base:
        tokenizer = Tokenizer.from_file(str(context.model / "tokenizer.json"))
        cold, _ = _sent(context, base, [shared])
        if cold.failed:
            yield failed("long", names["text"], cold.first_error)
            return
        for what, name in names.items():  # with texts of its own, or all of them would be cached
            more = [
                requests(_long(ADDED), seed=n + (2 if what == "text" else 1000))[0].prompt
                for n in range(sizes.prefill_repeats)
            ]
            texts = [f"{shared} {each}" for each in more]
            prompts = texts if what == "text" else [tokenizer.encode(text).ids for text in texts]
            found, answers = _sent(context, base, prompts)
            if found.failed:
                yield failed("long", name, found.first_error)
                continue
            note = f"{min(answer.cached_tokens for answer in answers)} tokens were cached"
            yield measured("long", name, [answer.ttft_s for answer in answers], note=note)


def _long(tokens: int) -> Workload:
    return Workload(requests=1, concurrency=1, prompt_tokens=(tokens,) * 2, output_tokens=(2, 2))


def _sent(
    context: Context, base: str, prompts: Sequence[str | list[int]]
) -> tuple[BenchmarkMetrics, list[RequestResult]]:
    """One after another, two tokens each."""
    made = [WorkloadRequest(prompt=cast("str", each), words=1, output_tokens=2) for each in prompts]
    target = load_generator.TargetServer(
        base_url=base, model="bench", extra={"ignore_eos": True}, timeout_s=max(1.0, context.left_s)
    )
    answers, wall_s = asyncio.run(load_generator.run(target, made, 1))
    return benchmark_metrics(answers, wall_s), answers


def starts(context: Context) -> Iterator[Cell]:
    """From the command to the first 200: with nothing known of the model, then with what that start kept."""
    plans = context.folder / "plans"
    known: dict[str, Running] = {}
    weights = context.weight_bytes
    for name, which in (("start, the first of a model", "cold"), ("start, a later one", "warm")):
        if context.left_s < (START_S if context.sizes.name == "full" else 1.0):
            yield skipped("start", name, NO_TIME)
            continue
        server = _Server(context, str(plans))
        try:
            with server:
                assert server.running is not None
                known[which] = server.running
                said = server.log.read_text(errors="replace")
        except RuntimeError as error:
            yield failed("start", name, str(error))
            continue
        parts = _PARTS.search(said)
        note = f"of it {parts[0]} s" if parts else ""
        yield measured("start", name, [server.running.start_s], note=note)
        if parts and which == "warm":
            rate = context.book.value("ceilings", "copying from pinned memory")
            seconds = max(float(parts[1]), 0.05)  # the banner says tenths
            top = rate if context.device != "cpu" else 0.0
            yield measured(
                "start", "weights while they are loaded", [weights / seconds], unit="B/s", more=True, floor=top
            )


class _Server:
    """`kvasir serve` on free ports of loopback, as long as the block lasts."""

    def __init__(self, context: Context, plans: str, options: Sequence[str] = (), max_model_len: int = 0) -> None:
        self._context, self._plans, self._options = context, plans, options
        self._max_model_len = max_model_len or context.sizes.max_model_len
        self._stack = ExitStack()
        self.log = context.folder / "server.log"
        self.running: Running | None = None
        self.url = ""

    def __enter__(self) -> str:
        port, ops = _free_port(), _free_port()
        sizes = self._context.sizes
        options = [
            "--device",
            self._context.device,
            "--dtype",
            sizes.dtype,
            "--max-model-len",
            str(self._max_model_len),
            *self._options,
        ]
        command = [str(BIN / "kvasir"), "serve", str(self._context.model), "--served-model-name", "bench", *options]
        command += ["--port", str(port), "--ops-port", str(ops), "--startup-cache", self._plans, *sizes.server_options]
        self.url = f"http://127.0.0.1:{port}/v1"
        ready = f"http://127.0.0.1:{port}/health"
        self.running = self._stack.enter_context(serving(command, ready, self.log, {"HF_HUB_OFFLINE": "1"}))
        return self.url

    def __exit__(self, *error: object) -> None:
        self._stack.close()


def _asked(
    context: Context, base: str, workload: Workload, seed: int = 0
) -> tuple[BenchmarkMetrics, list[RequestResult]]:
    target = load_generator.TargetServer(
        base_url=base, model="bench", extra={"ignore_eos": True}, timeout_s=max(1.0, context.left_s)
    )
    warm = Workload(requests=2, concurrency=2, prompt_tokens=workload.prompt_tokens, output_tokens=(2, 2))
    asyncio.run(load_generator.run(target, requests(warm, -1 - seed), warm.concurrency))
    answers, wall_s = asyncio.run(load_generator.run(target, requests(workload, seed), workload.concurrency))
    return benchmark_metrics(answers, wall_s), answers


def _first_token(name: str, asked: tuple[BenchmarkMetrics, list[RequestResult]], floor: float) -> Cell:
    found, answers = asked
    if found.failed:
        return failed("serving", name, found.first_error)
    goal = Goal(sense="at most", value=FIRST_TOKEN_S)
    return measured("serving", name, [answer.ttft_s for answer in answers], floor=floor, goal=goal)


def _crowd(
    context: Context,
    base: str,
    crowd: tuple[int, int, int, int],
    name: str,
    section: str = "serving",
    precision: str = "",
) -> Iterator[Cell]:
    """Tokens a second, and the time to the first of them."""
    clients, requests, prompt, answer = crowd
    load_of = Workload(requests=requests, concurrency=clients, prompt_tokens=(prompt,) * 2, output_tokens=(answer,) * 2)
    found, answers = _asked(context, base, load_of, seed=clients)
    if found.failed:
        yield failed(section, name, f"{found.failed} of {found.requests} failed: {found.first_error}")
        return
    # Of fp8 a byte for each weight: less than is read, as scales are left out.
    work, head, weights = context.work, context.head, context.weight_bytes
    weights = float(work.weights) if precision == "fp8" else weights
    kv_bytes = float(context.sizes.shape.dtype.itemsize)
    floor = floors.load(clients, prompt, answer, work, head, weights, kv_bytes, context.ceilings(precision))
    note = f"first token {found.ttft_s.median * 1e3:.0f} ms, between tokens {found.tpot_s.median * 1e3:.1f} ms"
    goals = FP8_GOALS if precision == "fp8" else CROWD_GOALS
    goal = goals.get((clients, prompt, answer), Goal())
    rate = found.output_tokens_per_s
    yield measured(section, name, [rate], unit="tokens/s", more=True, floor=floor, goal=goal, note=note)
    first = [each.ttft_s for each in answers]
    goal = CROWD_FIRST_TOKEN if (clients, prompt, answer) == (64, 128, 128) else Goal()
    yield measured(section, f"first token of {name}", first, goal=goal)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
