"""Time of a decode step by batch and context, how long the device waits in it, and how much of the cache is no token's.

The engine computes every prompt itself, with tokens of their own for each sequence: nothing is shared, nothing is
forced. Steps count from when all sequences have begun and the first ones of them are over.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, get_args

from bench.gpu import idle
from bench.gpu.book import Cell, Goal, failed, measured, skipped
from bench.gpu.floors import step
from bench.gpu.inprocess import Late, Served, prompt, request
from bench.gpu.section import NO_TIME, Context
from kvasir_api.options import ServeOptions
from kvasir_runtime.wire import StepOutputs, Submit, ToEngine

GOALS: Final = {
    ("bfloat16", 1, 1024): 0.85,
    ("bfloat16", 64, 1024): 0.85,
    ("bfloat16", 256, 1024): 0.90,
    ("bfloat16", 64, 8192): 0.95,
    ("fp8", 1, 1024): 0.72,
}
VARIANTS: Final[dict[str, dict[str, str]]] = {
    "fp8": {"quantization": "fp8"},
    "fp8 and its cache": {"quantization": "fp8", "kv_cache_dtype": "fp8"},
    "int4": {"quantization": "int4"},
}
"""Besides 16 bits, at the first context only; where the engine has them for this device."""
WASTE: Final = 0.04
ROOM: Final = 1024
"""Tokens behind a context that a cell adds at most, of up to some hundred sequences."""
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

    def heard(self, step: StepOutputs, now: float) -> Sequence[ToEngine] | None:
        """Count tokens, and times once all have begun."""
        for event in step.outputs:
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
    yield from _grid(context, context.sizes.dtype, {"quantization": "none"}, context.sizes.decode)
    few = [cell for cell in context.sizes.decode if cell[1] == context.sizes.decode[0][1]]
    for label, how in VARIANTS.items():
        missing = [value for name, value in how.items() if value not in _known(name)]
        if missing:
            yield skipped("decode", f"decode, {label}", f"the engine has no {missing[0]}")
            continue
        try:
            yield from _grid(context, label, how, few)
        except Exception as error:  # noqa: BLE001 -- one precision must not cost the others
            yield failed("decode", f"decode, {label}", str(error))


def _known(option: str) -> tuple[str, ...]:
    return get_args(ServeOptions.model_fields[option].annotation)


def _grid(context: Context, label: str, how: Mapping[str, Any], cells: Sequence[tuple[int, int]]) -> Iterator[Cell]:
    names = {cell: f"decode, {label}, {cell[0]} x {cell[1]}" for cell in cells}
    if context.left_s < LEAST_S:
        yield from (skipped("decode", name, NO_TIME) for name in names.values())
        return
    served = Served(context.model, context.sizes, context.device, **how)
    try:
        for cell, name in names.items():
            goal = GOALS.get((label, *cell))
            yield decoded(context, served, cell, name, Goal(sense="ratio", value=goal) if goal else Goal())
        if label == context.sizes.dtype:
            yield _waste(context, served)
            budget = served.runner.facts.max_batch_tokens
            yield idle.waited(context, served, functools.partial(Steady, budget=budget, warm=context.sizes.warm_steps))
    finally:
        served.close()


def decoded(
    context: Context, served: Served, cell: tuple[int, int], name: str, goal: Goal, section: str = "decode"
) -> Cell:
    """Steps of one batch and context."""
    batch, known = cell
    sizes = context.sizes
    if context.left_s < LEAST_S:
        return skipped(section, name, NO_TIME)
    facts = served.runner.facts
    prompts = [prompt(known, sizes.shape.vocab_size, (name, n)) for n in range(batch)]
    longest = known + spare(prompts, facts.max_batch_tokens) + sizes.warm_steps + sizes.steps
    if batch * (longest + facts.block_size) > facts.num_blocks * facts.block_size:
        return skipped(section, name, f"the cache holds {facts.num_blocks * facts.block_size:,} tokens")
    script = Steady(prompts, facts.max_batch_tokens, sizes.warm_steps, sizes.steps)
    if said := _without(context, served, script, name, section):
        return said
    mean = sum(script.contexts) / len(script.contexts)
    kv_bytes = facts.kv_bytes_per_token / context.work.kv_width
    top = context.ceilings(facts.quantization)
    floor = step(batch, mean, context.work, facts.weights_bytes - context.table_bytes, kv_bytes, top)
    seconds = script.seconds
    note = f"{batch * len(seconds) / sum(seconds):,.0f} tokens/s"
    return measured(section, name, seconds, floor=floor, goal=goal, note=note)


def _without(context: Context, served: Served, script: Steady, name: str, section: str = "decode") -> Cell | None:
    """Run a script: the cell that says why there is no figure, or None where there is one."""
    try:
        served.run(script, context.left_s)
    except Late as error:
        return skipped(section, name, f"{NO_TIME}: {error}")
    except RuntimeError as error:
        return failed(section, name, str(error))
    return None


def _waste(context: Context, served: Served) -> Cell:
    """Share of pinned places of the cache that hold no token, of sequences of many lengths, in every step."""
    name, (count, least, most) = "kv cache, pinned without a token", context.sizes.waste
    if context.left_s < LEAST_S:
        return skipped("decode", name, NO_TIME)
    lengths = [least + (most - least) * n // max(1, count - 1) for n in range(count)]
    prompts = [prompt(length, context.sizes.shape.vocab_size, ("waste", n)) for n, length in enumerate(lengths)]
    script = Steady(prompts, served.runner.facts.max_batch_tokens, context.sizes.warm_steps, context.sizes.steps)
    if said := _without(context, served, script, name):
        return said
    return measured("decode", name, script.wasted, unit="fraction", goal=Goal(sense="at most", value=WASTE))
