"""Plans of one chunk, and a draft model that keeps what it computes."""

from typing import Any

from kvasir_runtime.core.plan import Chunk, Join, StepPlan
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.wire import SamplingConfig


class Reader:
    """A model that keeps how many tokens it has computed in each pass."""

    def __init__(self, model: Any) -> None:
        self.spec, self._model = model.spec, model
        self.passes: list[int] = []

    def forward(self, batch: Any, kv_cache: Any) -> Any:
        self.passes.append(len(batch.token_ids))
        return self._model.forward(batch, kv_cache)

    def logits_of(self, output: Any) -> Any:
        return self._model.logits_of(output)


def plan_of(
    step: int, chunk: Chunk, tokens: tuple[int, ...] = (), table: tuple[int, ...] = (), computed: int = 0, **more: Any
) -> StepPlan:
    """Of one chunk, whose row joins where there are tokens."""
    join = Join(
        row=chunk.row,
        request_id=str(step),
        tokens=tokens,
        prompt_tokens=len(tokens),
        computed_tokens=computed,
        tables=(table,),
        sampling=SamplingConfig(temperature=0.0, max_tokens=50),
    )
    return StepPlan(step=step, joins=(join,) if tokens else (), chunks=(chunk,), **more)


def run(made: ModelRunner, plan: StepPlan) -> Any:
    return made.collect(made.launch(plan)).sampled
