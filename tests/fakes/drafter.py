"""Drafters that know the answer, and are wrong at chosen places."""

from array import array
from collections.abc import Iterable, Sequence
from zlib import crc32

from fakes.model import FakeModel
from kvasir_runtime.core.plan import UNDRAFTED, StepPlan
from kvasir_runtime.core.scheduler import Scheduler
from kvasir_runtime.core.speculation.drafters import Draft, TokenHistory


class AlwaysDrafter:
    """As many tokens as it may, since whether they are right is another's to say. limit: at most."""

    def __init__(self, limit: int = 1 << 10) -> None:
        self._limit = limit

    def propose(self, history: TokenHistory, most: int) -> Draft:
        """Ones."""
        count = min(most, self._limit)
        return Draft((1,) * count, (1.0,) * count, 8)


class OracleDrafter:
    """wrong_every: about one draft in so many is wrong, by what stands before it; 0 for none."""

    def __init__(self, model: FakeModel, wrong_every: int = 4) -> None:
        self._model, self._wrong_every = model, wrong_every

    def propose(self, history: TokenHistory, most: int) -> Draft:
        """What the model answers to a text that it is asked for without a seed."""
        context, tokens = history.ids.tolist(), list[int]()
        for _ in range(most):
            token = self._model.next_token(context)
            place = crc32(array("I", context).tobytes(), 3)
            if self._wrong_every and place % self._wrong_every == 0:
                token = self._model.table[(place // self._wrong_every) % len(self._model.table)]
            tokens.append(token)
            context.append(token)
        return Draft(tuple(tokens), (1.0,) * len(tokens), 1)


class RecordedDrafter:
    """texts: prompts with their answers. wrong_every: about one place of a text in so many is drafted wrong."""

    def __init__(self, texts: Iterable[Sequence[int]], wrong_every: int = 5) -> None:
        self._texts, self._wrong_every = [list(text) for text in texts], wrong_every

    def propose(self, history: TokenHistory, most: int) -> Draft:
        """What followed where the same text was answered."""
        context, tokens = history.ids.tolist(), list[int]()
        for text in self._texts:
            if text[: len(context)] == context:
                tokens = text[len(context) : len(context) + most]
                break
        for place in range(len(tokens)):
            if crc32((len(context) + place).to_bytes(4)) % self._wrong_every == 0:
                tokens[place] += 1 if tokens[place] < 100 else -1
        return Draft(tuple(tokens), (1.0,) * len(tokens), 1)


class DraftCounts:
    """How many drafts of a scheduler's plans are from texts, and how many its runner is to make."""

    def __init__(self, scheduler: Scheduler) -> None:
        """Of a scheduler whose drafts pay by what its steps have cost."""
        self.of_texts = self.of_model = 0
        speculation = scheduler._speculation
        for controller in (speculation._controller, speculation._of_texts):
            assert controller is not None
            for num_sequences in (*range(1, 17), *range(1, 17)):
                controller.costs.observe(num_sequences, 0, 1.0)
        self._plan = scheduler.plan
        scheduler.plan = self._counted  # type: ignore[method-assign]

    def _counted(self, now: float) -> StepPlan | None:
        plan = self._plan(now)
        for chunk in plan.chunks if plan is not None else ():
            if chunk.drafts[:1] == (UNDRAFTED,):
                self.of_model += len(chunk.drafts)
            else:
                self.of_texts += len(chunk.drafts)
        return plan
