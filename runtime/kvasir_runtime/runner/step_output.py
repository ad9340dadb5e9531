"""What a step gives: sampled ids, logprobs and pooled vectors, on the device and then in host memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from kvasir_runtime.core.plan import Chunk, SampledTokens, StepResults
from kvasir_runtime.kernels.argmax import INVALID
from kvasir_runtime.runner.pooling import PooledVectors
from kvasir_runtime.runner.sampling.logprobs import PackedLogprobs
from kvasir_runtime.wire import Logprobs


@dataclass(slots=True, kw_only=True)
class StepOutput:
    """token_ids: (samples,) int64, None where no chunk samples. logprobs: of sampled tokens; prompt_logprobs: of
    prompts that are scored.
    """

    token_ids: Tensor | None = None
    logprobs: PackedLogprobs | None = None
    prompt_logprobs: PackedLogprobs | None = None
    pooled: PooledVectors | None = None

    def moved(self, move: Callable[[Tensor], Tensor]) -> "StepOutput":
        """The same with every tensor moved."""
        logprobs, prompt, pooled = self.logprobs, self.prompt_logprobs, self.pooled
        return StepOutput(
            token_ids=None if self.token_ids is None else move(self.token_ids),
            logprobs=None if logprobs is None else replace(logprobs, packed=move(logprobs.packed)),
            prompt_logprobs=None if prompt is None else replace(prompt, packed=move(prompt.packed)),
            pooled=None if pooled is None else replace(pooled, packed=move(pooled.packed)),
        )

    def results(self, step: int, sampled_positions: Sequence[Chunk]) -> StepResults:
        """Of a step; everything must be in host memory. sampled has an entry for each position that is sampled from."""
        ids = [] if self.token_ids is None else self.token_ids.tolist()
        logprobs = {} if self.logprobs is None else self.logprobs.unpacked()
        prompt_logprobs = {} if self.prompt_logprobs is None else self.prompt_logprobs.unpacked()
        return StepResults(
            step=step,
            sampled=tuple(
                sampled_tokens(chunk.row, token, logprobs.get(index, ()))
                for index, (chunk, token) in enumerate(zip(sampled_positions, ids, strict=True))
            ),
            scored=tuple(prompt_logprobs[index] for index in range(len(prompt_logprobs))),
            pooled=() if self.pooled is None else self.pooled.unpacked(),
        )


def sampled_tokens(row: int, token: int, logprobs: tuple[Logprobs, ...] = ()) -> SampledTokens:
    """The entry of a position that was sampled from. token: as `kernels.sample` gives it."""
    return SampledTokens(row, (), invalid=True) if token == INVALID else SampledTokens(row, (token,), logprobs)
