"""From hidden states to drawn tokens: the head, what requests do to its logits, the draw, and what is told of it.

Owned by the runner and called once a step, either right behind the forward pass or, where a grammar must first hear of
the token before, as soon as that one is known. It enqueues work and waits for masks at most, never for the device.
"""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from kvasir_runtime.core.plan import Chunk
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.layers.decoder import Decoder
from kvasir_runtime.runner import reports
from kvasir_runtime.runner.buckets import Draw
from kvasir_runtime.runner.controls import Controls
from kvasir_runtime.runner.masks import Filling, Masks
from kvasir_runtime.runner.queues import Queue
from kvasir_runtime.runner.reports import Drawn, Reports
from kvasir_runtime.runner.rows import AnyRows, Inputs


class Drawer:
    """Draws for the chunks of a step that sample."""

    def __init__(
        self,
        *,
        model: Decoder,
        ops: Ops,
        rows: AnyRows,
        controls: Controls,
        reports: Reports,
        masks: Masks | None,
        queue: Queue,
    ) -> None:
        self._model, self._ops, self._rows, self._queue = model, ops, rows, queue
        self._controls, self._reports, self._masks = controls, reports, masks

    def how(self, sampled: Sequence[Chunk], filling: Filling | None) -> Draw:
        """The least that the draw needs, told from what the host knows."""
        if filling is not None or self._controls.touch(sampled) or self._reports.asking(sampled):
            return "special"
        if any(chunk.min_tokens_left > 0 for chunk in sampled):
            return "special"
        if self._rows.greedy(sampled):
            return "greedy"
        return "filtered" if self._rows.filtered(sampled) else "plain"

    def draw(self, hidden: Tensor, sampled: Sequence[Chunk], inputs: Inputs, filling: Filling | None) -> Drawn:
        """Ids and reports on the device; the ids are behind their rows by then. hidden: (samples, hidden_size)."""
        if self.how(sampled, filling) == "greedy":
            ids = self._model.likeliest(hidden)
            self._rows.append(sampled, ids, inputs)
            return Drawn(ids=ids)
        sampling = self._rows.sampling(sampled, inputs)
        logits = self._model.logits(hidden).float()
        owners = self._reports.asking(sampled)
        if owners:
            asking = self._queue.upload(np.array([place for place, _, _ in owners], dtype=np.int64))
            unchanged = logits[asking]
        torn = {} if filling is None else self._torn(logits, sampled, filling)
        if sampling.forbidden is not None:
            logits[sampling.forbidden[:, 0], sampling.forbidden[:, 1]] = float("-inf")
        self._controls.change(logits, sampled, self._rows.tokens)
        if filling is not None and self._masks is not None:
            self._masks.change(logits, torn, filling)
        ids, void = self._ops.sample(logits, sampling.draws), set() if filling is None else filling.void
        self._rows.append(sampled, ids, inputs, void)
        self._controls.drawn(sampled, ids, void)
        return Drawn(ids=ids, of_answer=reports.of_answer(unchanged, ids[asking], owners) if owners else None)

    def _torn(self, logits: Tensor, sampled: Sequence[Chunk], filling: Filling) -> dict[int, Tensor]:
        """Logits of the guided rows of which all that is allowed may yet be forbidden, by their places among guided."""
        return {
            number: logits[one.place].clone()
            for number, one in enumerate(filling.guided)
            if sampled[one.place].min_tokens_left or self._controls.forbids(one.row)
        }
