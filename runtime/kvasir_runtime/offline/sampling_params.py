"""Sampling parameters in Python: the fields of a request, with logprobs as vLLM's classes have them."""

from typing import Any, Literal

from pydantic import Field

from kvasir_api.http_apis import MAX_CHOICES
from kvasir_runtime.frontend.protocol import sampling_fields
from kvasir_runtime.frontend.protocol.sampling_fields import MAX_COUNT, MAX_LOGPROBS
from kvasir_runtime.frontend.protocol.validation import StrictModel


class SamplingParams(sampling_fields.SamplingFields):
    """docs/api.md has the meanings. logprobs: how many of the most likely tokens come with each token of an answer.

    best_of: draw so many and give the n of the highest total probability; with use_beam_search the width.
    """

    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    best_of: int | None = Field(None, ge=1, le=MAX_CHOICES)

    def fields(self, *, chat: bool) -> dict[str, Any]:
        """The fields of a body. Those that were not set are left out, as the model may have defaults of its own."""
        given = self.model_dump(exclude_unset=True)
        if "logit_bias" in given:
            given["logit_bias"] = {str(token_id): bias for token_id, bias in self.logit_bias}
        if chat and "logprobs" in given:
            given |= {"logprobs": True, "top_logprobs": self.logprobs}
        return given


class BeamSearchParams(StrictModel):
    """Search for the beam_width likeliest answers. Names are vLLM's; the rules are those of transformers."""

    beam_width: int = Field(ge=1, le=MAX_CHOICES)
    max_tokens: int = Field(ge=1, le=MAX_COUNT)
    ignore_eos: bool = False
    temperature: float = Field(0.0, ge=0, le=0)
    length_penalty: float = Field(1.0, ge=-10, le=10)
    early_stopping: bool | Literal["never"] = False
    include_stop_str_in_output: bool = False
    stop_token_ids: list[sampling_fields.TokenId] = Field([], max_length=sampling_fields.MAX_STOP_IDS)
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)

    def sampling(self) -> SamplingParams:
        """The same as parameters of a request."""
        given = self.model_dump(exclude={"beam_width"})
        return SamplingParams(**given, n=self.beam_width, use_beam_search=True)
