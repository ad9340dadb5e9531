"""Runs plans: the forward pass, the draw of the next tokens, the rows in between. The engine calls launch and collect.

On CUDA `launch` only enqueues work, and `collect` waits for the drawn ids alone. On a CPU the whole plan is run by
`collect`: there is no second device to overlap with, and a worker thread would take a core from the arithmetic that it
waits for. So on both, launches form a queue that is worked off in order.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvasir_runtime.core.plan import Chunk, Join, Plan, Results
from kvasir_runtime.guide.compiler import Compiler
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.layers.decoder import Decoder
from kvasir_runtime.layers.spec import Head
from kvasir_runtime.runner import reports
from kvasir_runtime.runner.controls import Controls
from kvasir_runtime.runner.masks import Filling, Masks
from kvasir_runtime.runner.pooling import Pools
from kvasir_runtime.runner.reports import Drawn, Report, Reports
from kvasir_runtime.runner.rows import Rows
from kvasir_runtime.watch import Watch
from kvasir_runtime.wire import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a runner once it is built; the engine's banner, limits and `Ready` come from here."""

    device: str
    kernels: str
    dtype: str
    block_size: int
    num_blocks: int
    max_model_len: int
    max_sequences: int
    max_batch_tokens: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    weights_bytes: int
    kv_bytes_per_token: int
    load_s: float
    warm_s: float
    hidden_size: int = 0
    head: Head = "vocabulary"
    num_labels: int = 0
    quantization: str = ""
    fallback: str = ""

    @property
    def capacity_tokens(self) -> int:
        """Tokens that the KV cache holds."""
        return self.num_blocks * self.block_size


@dataclass(slots=True, kw_only=True)
class Launched:
    """A plan on its way. drawn: in host memory, complete once done was waited for. filling: its masks, if any."""

    plan: Plan
    filling: Filling | None = None
    drawn: Drawn | None = None
    done: torch.cuda.Event | None = None


class Runner:
    """Owns the device state of one model: weights, cache and rows."""

    def __init__(
        self,
        *,
        model: Decoder,
        ops: Ops,
        cache: Tensor,
        rows: Rows,
        controls: Controls,
        facts: Facts,
        grammars: Compiler | None = None,
    ) -> None:
        """cache: (layers, 2, num_blocks, block_size, kv_heads, head_dim), its contents need not be defined.

        grammars: None where no request is guided.
        """
        self.facts = facts
        self.grammars = grammars
        self._masks = None if grammars is None else Masks(grammars)
        self._model = model
        self._ops = ops
        self._cache = cache
        self._rows = rows
        self._controls = controls
        self._reports = Reports()
        self._pools = Pools(model.logits)
        self._on_cpu = cache.device.type == "cpu"
        self._launched: deque[Launched] = deque()
        self._watch = Watch()

    @property
    def graph_bytes(self) -> int:
        """Device memory that recorded steps hold, or on a scratch cache will hold; 0 where none are recorded."""
        return 0

    def watched(self, watch: Watch) -> None:
        """From now on, say what the time of a step goes into."""
        self._watch = watch
        self._model.count(watch.wants_parts)

    def launch(self, plan: Plan) -> Launched:
        """Start a plan; never waits for the device."""
        launched = Launched(plan=plan)
        if not self._on_cpu:
            self._enqueue(launched)
        self._launched.append(launched)
        return launched

    def collect(self, launched: Launched) -> Results:
        """The tokens that a plan drew, once it has run. Plans are collected in the order of their launches."""
        if not self._launched or self._launched[0] is not launched:
            raise ValueError(f"step {launched.plan.step} is not the oldest launched plan")
        self._launched.popleft()
        if self._on_cpu:
            launched.drawn = self._run(launched)
        if launched.done is not None:
            launched.done.synchronize()
        results = (launched.drawn or Drawn()).results(launched.plan)
        if launched.filling is None or self._masks is None:
            return results
        return self._masks.take(results, launched.filling, self._rows, self._controls)

    @torch.inference_mode()
    def logits(self, tokens: tuple[int, ...]) -> Tensor:
        """(len(tokens), vocab) float32: what every token of a text says of the next one.

        For measurements while no plan is launched: it takes row 0 and the first blocks, whatever they held.
        """
        blocks = tuple(range(-(-len(tokens) // self.facts.block_size)))
        join = Join(
            row=0,
            request_id="measured",
            tokens=tokens,
            prompt_tokens=len(tokens),
            computed_tokens=0,
            blocks=blocks,
            sampling=Sampling(max_tokens=1),
        )
        self._rows.apply(Plan(step=0, joins=(join,)))
        parts = []
        for start in range(0, len(tokens), self.facts.max_batch_tokens):
            count = min(self.facts.max_batch_tokens, len(tokens) - start)
            batch = self._rows.batch([Chunk(row=0, start=start, num_tokens=count, samples=False)])
            parts.append(self._model.forward(replace(batch, logit_rows=None), self._cache).float())
        return torch.cat(parts)

    def _enqueue(self, launched: Launched) -> None:
        drawn = self._run(launched)
        if drawn is not None:
            launched.drawn = Drawn(
                ids=None if drawn.ids is None else _to_host(drawn.ids),
                of_answer=_report_to_host(drawn.of_answer),
                of_prompt=_report_to_host(drawn.of_prompt),
                pooled=None if drawn.pooled is None else replace(drawn.pooled, packed=_to_host(drawn.pooled.packed)),
            )
            launched.done = torch.cuda.Event()
            launched.done.record()

    @torch.inference_mode()
    def _run(self, launched: Launched) -> Drawn | None:
        """Apply a plan and compute it; None when no chunk samples or scores."""
        plan = launched.plan
        self._rows.apply(plan)
        self._controls.apply(plan)
        self._reports.apply(plan)
        self._pools.apply(plan)
        if plan.copies:
            pairs = torch.tensor([(copy.source, copy.target) for copy in plan.copies])
            pairs = pairs.to(self._cache.device, non_blocking=True)
            self._ops.copy_blocks(self._cache, pairs[:, 0], pairs[:, 1])
        if not plan.chunks:
            return None
        sampled = [chunk for chunk in plan.chunks if chunk.samples]
        if self._masks is not None:
            self._masks.apply(plan)
            launched.filling = self._masks.begin(sampled)
        batch = self._rows.batch(plan.chunks)
        self._watch.lap("batch")
        hidden = self._model.hidden(batch, self._cache)
        self._watch.lap("forward")
        self._watch.parts(self._model.counted())
        if not hidden.shape[0]:
            return None
        drawn = self._draw(hidden[: len(sampled)], sampled, launched.filling) if sampled else Drawn()
        self._watch.lap("head+draw")
        owners = self._reports.scoring(plan.chunks)
        pooled_from = len(sampled) + sum(count for _, count, _ in owners)
        if owners:
            ids, between = self._rows.scored_ids(plan.chunks), hidden[len(sampled) : pooled_from]
            drawn = replace(drawn, of_prompt=reports.of_prompt(between, ids, self._model.logits, owners))
        if pooled_from < hidden.shape[0]:
            drawn = replace(drawn, pooled=self._pools.pool(hidden[pooled_from:], plan.chunks))
        return drawn

    def _draw(self, hidden: Tensor, sampled: Sequence[Chunk], filling: Filling | None) -> Drawn:
        plain = filling is None and not self._controls.touch(sampled) and not self._reports.asking(sampled)
        if plain and self._rows.greedy(sampled):
            ids = self._ops.argmax(self._model.logits(hidden))
            self._rows.append(sampled, ids)
            return Drawn(ids=ids)
        sampling = self._rows.sampling(sampled)
        logits = self._model.logits(hidden).float()
        owners = self._reports.asking(sampled)
        if owners:
            asking = torch.tensor([place for place, _, _ in owners]).to(logits.device, non_blocking=True)
            unchanged = logits[asking]
        torn = {} if filling is None else self._torn(logits, sampled, filling)
        if sampling.forbidden.shape[0]:
            logits[sampling.forbidden[:, 0], sampling.forbidden[:, 1]] = float("-inf")
        self._controls.change(logits, sampled, self._rows.tokens)
        if filling is not None and self._masks is not None:
            self._masks.change(logits, torn, filling)
        ids = self._ops.sample(logits, sampling.draws)
        self._rows.append(sampled, ids)
        self._controls.drawn(sampled, ids)
        return Drawn(ids=ids, of_answer=reports.of_answer(unchanged, ids[asking], owners) if owners else None)

    def _torn(self, logits: Tensor, sampled: Sequence[Chunk], filling: Filling) -> dict[int, Tensor]:
        """Logits of the guided rows of which all that is allowed may yet be forbidden, by their places among guided."""
        return {
            number: logits[one.place].clone()
            for number, one in enumerate(filling.guided)
            if sampled[one.place].min_tokens_left or self._controls.forbids(one.row)
        }


def _to_host(tensor: Tensor) -> Tensor:
    """Without waiting: complete once the stream got so far."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)


def _report_to_host(report: Report | None) -> Report | None:
    return None if report is None else replace(report, packed=_to_host(report.packed))
