"""What LLM gives back: one Output per prompt, in the order of the prompts."""

from dataclasses import dataclass

from kvasir_runtime.wire import FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One choice. token_ids are those of its text, without the id that ended it."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One prompt with all its choices. cached_tokens of the prompt's ids were found in the prefix cache."""

    prompt_token_ids: tuple[int, ...]
    cached_tokens: int
    outputs: tuple[Completion, ...]

    @property
    def text(self) -> str:
        """Of the first choice."""
        return self.outputs[0].text
