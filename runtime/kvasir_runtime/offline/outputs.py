"""What LLM returns: one Output per prompt, in the order of the prompts. Names and shapes are those of vLLM."""

from dataclasses import dataclass

from kvasir_runtime.wire import FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprob:
    """What the model thought of one token at one place: natural logarithm of its probability, and its rank from 1."""

    logprob: float
    rank: int
    decoded_token: str


TokenLogprobs = dict[int, Logprob]
"""By token id: the token itself and the likeliest at its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One choice. token_ids are those of its text, without the id that ended it.

    logprobs: one for each of token_ids, cumulative_logprob: their sum; None where logprobs were not requested.
    score: of an answer that was searched for with beams: the sum of its logprobs by its length.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprobs, ...] | None = None
    cumulative_logprob: float | None = None
    score: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """The vector of one prompt."""

    embedding: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingOutput:
    """One prompt with its vector."""

    prompt_token_ids: tuple[int, ...]
    outputs: Embedding


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One prompt with all its choices. cached_tokens of the prompt's ids were found in the prefix cache.

    prompt: its text, of a chat what the template made of it; None where the prompt was ids.
    prompt_logprobs: one for each of the prompt's ids, None for the first; None altogether where not requested.
    """

    prompt_token_ids: tuple[int, ...]
    cached_tokens: int
    outputs: tuple[Completion, ...]
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    prompt: str | None = None
    request_id: str = ""
    finished: bool = True

    @property
    def text(self) -> str:
        """Of the first choice."""
        return self.outputs[0].text
