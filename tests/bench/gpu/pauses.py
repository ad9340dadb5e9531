"""How long streams pause while prompts are computed: gaps between two tokens of one stream, alone and beside them."""

from collections.abc import Iterator, Sequence
from typing import Final

from bench.gpu.book import Cell, failed, measured, skipped
from bench.gpu.decode import spare
from bench.gpu.inprocess import Late, Served, prompt, request
from bench.gpu.section import NO_TIME, Context
from kvasir_runtime.wire import StepOutputs, Submit, ToEngine

LEAST_S: Final = 20.0


class Interrupted:
    """Streams alone for so many steps; then prompts for one token each, the next as soon as one is answered."""

    def __init__(
        self, streams: Sequence[Sequence[int]], prompts: Sequence[Sequence[int]], budget: int, warm: int, steps: int
    ) -> None:
        self._warm, self._steps = warm, steps
        answer = spare(streams, budget) + spare(prompts, budget) + 4 * len(prompts) + warm + steps
        self._streams = [request(ids, answer) for ids in streams]
        self._left = [request(ids, 1) for ids in reversed(prompts)]
        self._last: dict[str, float] = {made.request_id: 0.0 for made in self._streams}
        self._seen = 0
        self.wrong = ""
        self.alone: list[float] = []
        self.beside: list[float] = []

    def begin(self) -> Sequence[ToEngine]:
        """Every stream."""
        return [Submit(made) for made in self._streams]

    def heard(self, step: StepOutputs, now: float) -> Sequence[ToEngine] | None:
        """Gaps once all streams answer; the first prompt when enough steps were counted."""
        answered = False
        for event in step.outputs:
            if event.request_id not in self._last:
                answered = answered or event.finish_reason is not None
                continue
            if event.finish_reason is not None:
                self.wrong = f"a stream ended while it was measured: {event.finish_reason} {event.message}"
                return None
            if event.token_ids:
                if self._seen > self._warm:
                    gaps = self.alone if self._seen <= self._warm + self._steps else self.beside
                    gaps.append(now - self._last[event.request_id])
                self._last[event.request_id] = now
        if not all(self._last.values()):
            return ()
        self._seen += 1
        if answered or self._seen == self._warm + self._steps + 1:
            return [Submit(self._left.pop())] if self._left else None
        return ()


def cells(context: Context) -> Iterator[Cell]:
    """Gaps of streams alone and under prompts, and the longest of the latter."""
    count, known, prompts, tokens = context.sizes.pauses
    name = f"gap of {count} streams of {known}"
    names = (f"{name}, alone", f"{name}, under prompts of {tokens}", f"{name}, the longest under prompts of {tokens}")
    if context.left_s < (LEAST_S if context.sizes.name == "full" else 1.0):
        yield from (skipped("pauses", each, NO_TIME) for each in names)
        return
    vocab = context.sizes.shape.vocab_size
    served = Served(context.model, context.sizes, context.device)
    script = Interrupted(
        [prompt(known, vocab, ("stream", n)) for n in range(count)],
        [prompt(tokens, vocab, ("interrupts", n)) for n in range(prompts)],
        served.runner.facts.max_batch_tokens,
        context.sizes.warm_steps,
        context.sizes.steps,
    )
    try:
        served.run(script, context.left_s)
        yield measured("pauses", names[0], script.alone)
        note = f"{max(script.beside) / sorted(script.alone)[len(script.alone) // 2]:.0f} times the gap alone"
        yield measured("pauses", names[1], script.beside)
        yield measured("pauses", names[2], [max(script.beside)], note=note)
    except Late as error:
        yield from (skipped("pauses", each, f"{NO_TIME}: {error}") for each in names)
    except RuntimeError as error:
        yield failed("pauses", name, str(error))
    finally:
        served.close()
