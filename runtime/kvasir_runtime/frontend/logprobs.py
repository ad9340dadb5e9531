"""Log-probabilities as clients of OpenAI and vLLM read them: of a chat, of a completion, of a prompt.

Called by the answers for each piece that is sent. Pure but for the tokenizer it is given. Bytes are exact also where a
token is only a part of a character: such a token is written with escapes, as OpenAI does, and its offset is that of the
character.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from kvasir_runtime.frontend.tokenizer import Tokenizer
from kvasir_runtime.wire import Logprobs

LOWEST: Final = -9999.0
"""OpenAI's value for a probability of zero, whose logarithm JSON cannot carry."""


class OutputToken(NamedTuple):
    """One token of a text. offset: characters of the text before it. logprobs: None for the first of a prompt."""

    token_id: int
    offset: int
    logprobs: Logprobs | None


class TopLogprob(msgspec.Struct, frozen=True):
    """One of the most likely tokens at a position of a chat message."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct, frozen=True):
    """One token of a chat message."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """Of a chat message or a piece of one."""

    content: list[TokenLogprob]
    refusal: None = None


class TextLogprobs(msgspec.Struct, frozen=True):
    """Of a completion or a piece of one: lists of equal lengths."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class TokenLabels:
    """How token ids are written. as_ids: as token_id:ID, which is never ambiguous (vLLM's option)."""

    def __init__(self, tokenizer: Tokenizer, *, as_ids: bool = False) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids

    def raw(self, token_id: int) -> bytes:
        """What it adds to a text."""
        return self._tokenizer.token_bytes(token_id)

    def token(self, token_id: int, *, prefix: str = "") -> str:
        """As text; with prefix and escapes where its bytes are none."""
        if self._as_ids:
            return f"token_id:{token_id}"
        raw = self.raw(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return prefix + "".join(f"\\x{byte:02x}" for byte in raw)


def of_chat(tokens: Sequence[OutputToken], labels: TokenLabels, num_top: int) -> ChatLogprobs:
    """content: the tokens in order, each with the num_top most likely at its position."""
    content = []
    for token_id, _, found in tokens:
        if found is None:
            continue
        top = [
            TopLogprob(labels.token(other), _finite(value), list(labels.raw(other)))
            for other, value in zip(found.top_ids[:num_top], found.top, strict=False)
        ]
        content.append(TokenLogprob(labels.token(token_id), _finite(found.logprob), list(labels.raw(token_id)), top))
    return ChatLogprobs(content)


def of_text(tokens: Sequence[OutputToken], labels: TokenLabels, num_top: int) -> TextLogprobs:
    """top_logprobs holds the token itself too, as vLLM's; where two tokens read the same the likelier stays."""
    return TextLogprobs(
        text_offset=[token.offset for token in tokens],
        token_logprobs=[None if token.logprobs is None else _finite(token.logprobs.logprob) for token in tokens],
        tokens=[labels.token(token.token_id, prefix="bytes:") for token in tokens],
        top_logprobs=[_top(token, labels, num_top) for token in tokens],
    )


def of_prompt(ids: Sequence[int], found: Sequence[Logprobs], labels: TokenLabels, num_top: int) -> list[Any]:
    """vLLM's prompt_logprobs: null for the first token, then by id the token itself and the most likely ones."""
    made: list[Any] = [None]
    for token_id, one in zip(ids[1:], found, strict=False):
        ranked = [(rank + 1, *pair) for rank, pair in enumerate(zip(one.top_ids, one.top, strict=True))][:num_top]
        entries = [(one.rank, token_id, one.logprob), *(entry for entry in ranked if entry[1] != token_id)]
        made.append(
            {
                str(other): {"logprob": _finite(value), "rank": rank, "decoded_token": labels.token(other)}
                for rank, other, value in entries
            }
        )
    return made


def _top(token: OutputToken, labels: TokenLabels, num_top: int) -> dict[str, float] | None:
    if token.logprobs is None:
        return None
    found = token.logprobs
    top = {labels.token(token.token_id, prefix="bytes:"): _finite(found.logprob)}
    for other, value in zip(found.top_ids[:num_top], found.top, strict=False):
        top.setdefault(labels.token(other, prefix="bytes:"), _finite(value))
    return top


def _finite(value: float) -> float:
    return max(value, LOWEST)
