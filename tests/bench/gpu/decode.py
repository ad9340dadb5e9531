"""Time of a decode step by batch and context, how long the device waits in it, and how much of the cache is no token's.

The engine computes every prompt itself, with tokens of their own for each sequence: nothing is shared, nothing is
forced. Steps count from when all sequences have begun and the first ones of them are over.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, get_args

from bench.gpu import idle
from bench.gpu.book import Cell, Goal, failed, measured, skipped
from bench.gpu.floors import step
from bench.gpu.inprocess import Late, Served, prompt, request
from bench.gpu.section import NO_TIME, Context
from kvasir_api import options
from kvasir_runtime.wire import Step, Submit, ToEngine

GOALS: Final = {
    ("none", 1, 1024): 0.85,
    ("none", 64, 1024): 0.85,
    ("none", 256, 1024): 0.90,
    ("none", 64, 8192): 0.95,
    ("fp8", 1, 1024): 0.72,
}
QUANTIZATIONS: Final = ("fp8", "int4")
"""Those that are measured where the engine has them for this device."""
IDLE_S: Final = 100e-6
WASTE: Final = 0.04
LEAST_S: Final = 10.0


class Steady:
    """All sequences at once; then so many steps, of which the first do not count.

    budget: tokens of a step: those that began first answer while the last prompts are computed.
    on_step: told the number of each step that counts, from 0 on, when it has come, and -1 when they begin.
    """

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        budget: int,
        warm: int,
        steps: int,
        on_step: Callable[[int], None] | None = None,
    ) -> None:
        self._warm, self._steps, self._on_step = warm, steps, on_step or (lambda _: None)
        answer = spare(prompts, budget) + warm + steps
        self._requests = [request(ids, answer) for ids in prompts]
        self._known = {made.request_id: len(made.prompt) for made in self._requests}
        self._answered: set[str] = set()
        self._seen = 0
        self.wrong = ""
        self.times: list[float] = []
        self.contexts: list[float] = []
        self.wasted: list[float] = []

    def begin(self) -> Sequence[ToEngine]:
        """Every request."""
        return [Submit(made) for made in self._requests]

    def heard(self, step: Step, now: float) -> Sequence[ToEngine] | None:
        """Count tokens, and times once all have begun."""
        for event in step.events:
            if event.finish_reason is not None:
                self.wrong = f"a sequence ended while it was measured: {event.finish_reason} {event.message}"
                return None
            self._known[event.request_id] += len(event.token_ids)
            if event.token_ids:
                self._answered.add(event.request_id)
        if len(self._answered) < len(self._requests):
            return ()
        self._seen += 1
        if self._seen < self._warm:
            return ()
        self.times.append(now)
        live = sum(self._known.values())
        self.contexts.append(live / len(self._known))
        pinned = step.state.kv.pinned_tokens
        self.wasted.append(1 - live / pinned if pinned else 0.0)
        self._on_step(len(self.times) - 2)
        return None if len(self.times) > self._steps else ()

    @property
    def seconds(self) -> list[float]:
        """Of each step that counts."""
        return [after - before for before, after in pairwise(self.times)]


def spare(prompts: Sequence[Sequence[int]], budget: int) -> int:
    """Steps that the prompts take at most, with room for a scheduler that gives them half of each step."""
    return 2 * (sum(map(len, prompts)) // budget + len(prompts)) + 8


def grid(context: Context) -> Iterator[Cell]:
    """Every batch and context, in 16 bits and in what else the engine has."""
    yield from _grid(context, "none", context.sizes.decode)
    for quantization in QUANTIZATIONS:
        few = [cell for cell in context.sizes.decode if cell[1] == context.sizes.decode[0][1]]
        if quantization not in get_args(options.Quantization):
            yield skipped("decode", f"decode, {quantization}", f"the engine has no --quantization {quantization}")
            continue
        try:
            yield from _grid(context, quantization, few)
        except Exception as error:  # noqa: BLE001 -- one precision must not cost the others
            yield failed("decode", f"decode, {quantization}", str(error))


def _grid(context: Context, quantization: str, cells: Sequence[tuple[int, int]]) -> Iterator[Cell]:
    label = context.sizes.dtype if quantization == "none" else quantization
    names = {cell: f"decode, {label}, {cell[0]} x {cell[1]}" for cell in cells}
    if context.left_s < LEAST_S:
        yield from (skipped("decode", name, NO_TIME) for name in names.values())
        return
    served = Served(context.model, context.sizes, context.device, quantization=quantization)
    for cell in cells:
        yield _decoded(context, served, quantization, cell, names[cell])
    if quantization == "none":
        yield _waste(context, served)
        budget = served.runner.facts.max_batch_tokens
        yield idle.waited(context, served, functools.partial(Steady, budget=budget, warm=context.sizes.warm_steps))
    served.close()


def _decoded(context: Context, served: Served, quantization: str, cell: tuple[int, int], name: str) -> Cell:
    batch, known = cell
    sizes = context.sizes
    if context.left_s < LEAST_S:
        return skipped("decode", name, NO_TIME)
    facts = served.runner.facts
    prompts = [prompt(known, sizes.shape.vocab_size, (name, n)) for n in range(batch)]
    longest = known + spare(prompts, facts.max_batch_tokens) + sizes.warm_steps + sizes.steps
    if batch * (longest + facts.block_size) > facts.num_blocks * facts.block_size:
        return skipped("decode", name, f"the cache holds {facts.num_blocks * facts.block_size:,} tokens")
    script = Steady(prompts, facts.max_batch_tokens, sizes.warm_steps, sizes.steps)
    try:
        served.run(script, context.left_s)
    except Late as error:
        return skipped("decode", name, f"{NO_TIME}: {error}")
    except RuntimeError as error:
        return failed("decode", name, str(error))
    kv_bytes = facts.kv_bytes_per_token / context.work.kv_width
    mean = sum(script.contexts) / len(script.contexts)
    floor = step(
        batch, mean, context.work, context.weight_bytes(quantization), kv_bytes, context.ceilings(quantization)
    )
    return measured("decode", name, script.seconds, floor=floor, **_aim(quantization, cell, script.seconds))


def _aim(quantization: str, cell: tuple[int, int], seconds: Sequence[float]) -> dict[str, Any]:
    goal = GOALS.get((quantization, *cell))
    rate = cell[0] * len(seconds) / sum(seconds)
    return {"goal": Goal(sense="ratio", value=goal) if goal else Goal(), "note": f"{rate:,.0f} tokens/s"}


def _waste(context: Context, served: Served) -> Cell:
    """Share of pinned places of the cache that hold no token, of sequences of many lengths, in every step."""
    name, (count, least, most) = "kv cache, pinned without a token", context.sizes.waste
    if context.left_s < LEAST_S:
        return skipped("decode", name, NO_TIME)
    lengths = [least + (most - least) * n // max(1, count - 1) for n in range(count)]
    prompts = [prompt(length, context.sizes.shape.vocab_size, ("waste", n)) for n, length in enumerate(lengths)]
    script = Steady(prompts, served.runner.facts.max_batch_tokens, context.sizes.warm_steps, context.sizes.steps)
    try:
        served.run(script, context.left_s)
    except Late as error:
        return skipped("decode", name, f"{NO_TIME}: {error}")
    except RuntimeError as error:
        return failed("decode", name, str(error))
    return measured("decode", name, script.wasted, unit="fraction", goal=Goal(sense="at most", value=WASTE))
