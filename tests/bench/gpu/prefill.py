"""Time from a prompt to its first token inside the engine, by length; and of a follow-up on a long cached prefix."""

from collections.abc import Iterator, Sequence
from typing import Final

from bench.gpu.book import Cell, Goal, measured, skipped
from bench.gpu.floors import prefill
from bench.gpu.http_loads import far_follow_ups
from bench.gpu.inprocess import Late, Served, prompt, request
from bench.gpu.section import NO_TIME, Context
from kvasir_runtime.wire import StepOutputs, Submit, ToEngine

GOALS: Final = {1024: 0.88, 8192: 0.83}
FOLLOW_UP: Final = 60.0
ADDED: Final = 64
LONG_GOAL: Final = 0.68
LEAST_S: Final = 8.0
LONG_S: Final = 60.0


class OneByOne:
    """Prompts behind one another, each for one token."""

    def __init__(self, prompts: Sequence[Sequence[int]]) -> None:
        self._left = [request(ids, 1) for ids in reversed(prompts)]
        self._sent = 0.0
        self.wrong = ""
        self.seconds: list[float] = []
        self.cached: list[int] = []

    def begin(self) -> Sequence[ToEngine]:
        """The first; its time begins with the first step, as nothing is said before."""
        return [Submit(self._left.pop())]

    def heard(self, step: StepOutputs, now: float) -> Sequence[ToEngine] | None:
        """The next as soon as one is answered. The very first is a warm one: its time is not known."""
        for event in step.outputs:
            if event.finish_reason == "error":
                self.wrong = event.message
                return None
            if event.token_ids:
                if self._sent:
                    self.seconds.append(now - self._sent)
                    self.cached.append(event.cached_tokens)
                if not self._left:
                    return None
                self._sent = now
                return [Submit(self._left.pop())]
        return ()


def grid(context: Context) -> Iterator[Cell]:
    """Every length, then the prefix."""
    sizes, vocab = context.sizes, context.sizes.shape.vocab_size
    names = {tokens: f"prefill, {sizes.dtype}, {tokens}" for tokens in sizes.prefill}
    if context.left_s < LEAST_S:
        yield from (skipped("prefill", name, NO_TIME) for name in names.values())
        return
    served = Served(context.model, sizes, context.device)
    for tokens, name in names.items():
        if context.left_s < LEAST_S:
            yield skipped("prefill", name, NO_TIME)
            continue
        script = OneByOne([prompt(tokens, vocab, (name, n)) for n in range(sizes.prefill_repeats + 1)])
        try:
            served.run(script, context.left_s)
        except Late as error:
            yield skipped("prefill", name, f"{NO_TIME}: {error}")
            continue
        floor = prefill(tokens, 0, context.work, context.head, context.weight_bytes, context.ceilings())
        goal = Goal(sense="ratio", value=GOALS[tokens]) if tokens in GOALS else Goal()
        yield measured("prefill", name, script.seconds, floor=floor, goal=goal)
    yield from _follow_up(context, served, sizes.prefix, "prefill")
    served.close()


def longest(context: Context) -> Iterator[Cell]:
    """A prompt of as many tokens as models are made for, then a follow-up on still more, here and over HTTP."""
    sizes, vocab = context.sizes, context.sizes.shape.vocab_size
    name = f"prefill, {sizes.dtype}, {sizes.long_prompt}"
    if context.left_s < (LONG_S if sizes.name == "full" else 1.0):
        yield skipped("long", name, NO_TIME)
    else:
        served = Served(context.model, sizes, context.device, max_model_len=context.far_model_len)
        script = OneByOne([prompt(ADDED, vocab, "short"), prompt(sizes.long_prompt, vocab, "long")])
        try:
            served.run(script, context.left_s)
            floor = prefill(sizes.long_prompt, 0, context.work, context.head, context.weight_bytes, context.ceilings())
            yield measured("long", name, script.seconds, floor=floor, goal=Goal(sense="ratio", value=LONG_GOAL))
        except Late as error:
            yield skipped("long", name, f"{NO_TIME}: {error}")
        yield from _follow_up(context, served, sizes.far_prefix, "long")
        served.close()
    yield from far_follow_ups(context)


def _follow_up(context: Context, served: Served, tokens: int, section: str) -> Iterator[Cell]:
    """A long prompt cold, then the same with a little more behind it."""
    vocab = context.sizes.shape.vocab_size
    cold, warm, times = (f"{what} {tokens}" for what in ("first token, cold", "first token behind cached", "cold over"))
    if context.left_s < LEAST_S:
        yield from (skipped(section, name, NO_TIME) for name in (cold, warm, times))
        return
    ids = prompt(tokens, vocab, ("prefix", tokens))
    more = [(*ids, *prompt(ADDED, vocab, ("more", n))) for n in range(context.sizes.prefill_repeats)]
    script = OneByOne([prompt(ADDED, vocab, "warm"), ids, *more])
    try:
        served.run(script, context.left_s)
    except Late as error:
        yield from (skipped(section, name, f"{NO_TIME}: {error}") for name in (cold, warm, times))
        return
    top, weights = context.ceilings(), context.weight_bytes
    floors = [
        prefill(n, before, context.work, context.head, weights, top) for n, before in ((tokens, 0), (ADDED, tokens))
    ]
    first, rest = script.seconds[0], script.seconds[1:]
    hits = min(script.cached[1:])
    yield measured(section, cold, [first], floor=floors[0])
    yield measured(section, warm, rest, floor=floors[1], note=f"{hits} tokens were cached")
    yield measured(
        section,
        times,
        [first / each for each in rest],
        unit="x",
        more=True,
        goal=Goal(sense="at least", value=FOLLOW_UP),
    )
