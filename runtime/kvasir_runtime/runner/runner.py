"""Runs plans: the forward pass, the draw of the next tokens, the rows in between. The engine calls launch and collect.

On CUDA `launch` only enqueues work, and `collect` waits for the drawn ids alone. On a CPU the whole plan is run by
`collect`: there is no second device to overlap with, and a worker thread would take a core from the arithmetic that it
waits for. So on both, launches form a queue that is worked off in order.
"""

from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from kvasir_runtime.core.plan import Plan, Results, Sampled
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.layers.decoder import Decoder
from kvasir_runtime.runner.rows import Rows


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

    @property
    def capacity_tokens(self) -> int:
        """Tokens that the KV cache holds."""
        return self.num_blocks * self.block_size


@dataclass(slots=True, kw_only=True)
class Launched:
    """A plan on its way. ids: (samples,) drawn ids in host memory, complete once done was waited for."""

    plan: Plan
    ids: Tensor | None = None
    done: torch.cuda.Event | None = None


class Runner:
    """Owns the device state of one model: weights, cache and rows."""

    def __init__(self, *, model: Decoder, ops: Ops, cache: Tensor, rows: Rows, facts: Facts) -> None:
        """cache: (layers, 2, num_blocks, block_size, kv_heads, head_dim), its contents need not be defined."""
        self.facts = facts
        self._model = model
        self._ops = ops
        self._cache = cache
        self._rows = rows
        self._on_cpu = cache.device.type == "cpu"
        self._launched: deque[Launched] = deque()

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
            launched.ids = self._run(launched.plan)
        if launched.done is not None:
            launched.done.synchronize()
        ids = [] if launched.ids is None else launched.ids.tolist()
        sampling = [chunk for chunk in launched.plan.chunks if chunk.samples]
        sampled = tuple(Sampled(chunk.row, (token,)) for chunk, token in zip(sampling, ids, strict=True))
        return Results(step=launched.plan.step, sampled=sampled)

    def _enqueue(self, launched: Launched) -> None:
        ids = self._run(launched.plan)
        if ids is not None:
            launched.ids = torch.empty(ids.shape, dtype=ids.dtype, pin_memory=True).copy_(ids, non_blocking=True)
            launched.done = torch.cuda.Event()
            launched.done.record()

    @torch.inference_mode()
    def _run(self, plan: Plan) -> Tensor | None:
        """Apply a plan and compute it: (samples,) int64 drawn ids, or None when no chunk samples."""
        self._rows.apply(plan)
        if plan.copies:
            pairs = torch.tensor([(copy.source, copy.target) for copy in plan.copies])
            pairs = pairs.to(self._cache.device, non_blocking=True)
            self._ops.copy_blocks(self._cache, pairs[:, 0], pairs[:, 1])
        if not plan.chunks:
            return None
        logits = self._model.forward(self._rows.batch(plan.chunks), self._cache)
        if not logits.shape[0]:
            return None
        sampling = self._rows.sampling(plan.chunks)
        logits = logits.float()
        if sampling.forbidden.shape[0]:
            logits[sampling.forbidden[:, 0], sampling.forbidden[:, 1]] = float("-inf")
        ids = self._ops.sample(logits, sampling.draws)
        self._rows.append(sampling, ids)
        return ids
