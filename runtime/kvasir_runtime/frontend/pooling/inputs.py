"""From texts and pairs of texts to the token ids of prompts, cut where asked for.

Called in a worker thread. A cut keeps the beginning of a text, as what follows adds the least; what the tokenizer or
the form of a reranker puts around it stays whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tokenizers import Encoding

from kvasir_api import openai_errors
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.model_profile import ModelProfile
from kvasir_runtime.frontend.tokenizer import Tokenizer

DEFAULT_INSTRUCTION: Final = "Given a web search query, retrieve relevant passages that answer the query"
JUDGE_HEAD: Final = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct"
    ' provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
JUDGE_TAIL: Final = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
"""The form that Qwen3-Reranker was trained with; the next token is its judgement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """keep: most tokens of a prompt (None: all, and one that does not fit is refused); -1 keeps what fits.

    special: the tokenizer puts its special tokens around. second_keep: most tokens of the second text of a pair.
    """

    keep: int | None = None
    special: bool = True
    second_keep: int | None = None


def single(source: str | Sequence[int], profile: ModelProfile, cut: Cut, *, param: str) -> tuple[int, ...]:
    """Ids of a text, or ids as they are. Raises Refused naming the param."""
    tokenizer, room = profile.tokenizer, _room(cut, profile)
    if not isinstance(source, str):
        ids = tuple(source)[:room]
        if max(ids) >= tokenizer.vocab_size:
            message = f"Token id {max(ids)} is out of range: the model's vocabulary has {tokenizer.vocab_size} ids."
            raise _refused(message, param)
        return _checked(ids, profile, cut, param)
    encoded = _encoded(tokenizer, source, room, profile)
    if cut.keep is not None:
        encoded.truncate(max(0, room - _num_special(tokenizer, cut, is_pair=False)))
    return _checked(_surrounded(tokenizer, encoded, special=cut.special), profile, cut, param)


def is_cut(source: str, ids: Sequence[int], profile: ModelProfile) -> bool:
    """Whether a prompt that keeps what fits has not all of its text."""
    if len(ids) < profile.max_context:
        return False
    room = len(ids) - _num_special(profile.tokenizer, Cut(), is_pair=False)
    return len(_encoded(profile.tokenizer, source, room, profile).ids) > room


class JoinedTexts(NamedTuple):
    """second_from: position of the first token of the second text, where the tokenizer tells the two apart, else 0."""

    ids: tuple[int, ...]
    second_from: int = 0


def pair(first: str, second: str, profile: ModelProfile, cut: Cut, *, param: str) -> JoinedTexts:
    """Ids of two texts as the tokenizer joins them; a cut is taken from the second. Raises Refused.

    With a `text_end` each is as it is alone, which is what transformers makes of `add_eos_token`.
    """
    tokenizer, room = profile.tokenizer, _room(cut, profile)
    one = _encoded(tokenizer, first, profile.max_context, profile)
    other = _encoded(tokenizer, second, room if cut.second_keep is None else cut.second_keep, profile)
    if cut.second_keep is not None:
        other.truncate(cut.second_keep)
    if cut.keep is not None:
        other.truncate(max(0, min(len(other.ids), room - len(one.ids) - _num_special(tokenizer, cut, is_pair=True))))
    if cut.special and tokenizer.text_end is not None:
        before, behind = (_surrounded(tokenizer, text, special=True) for text in (one, other))
        return JoinedTexts(_checked((*before, *behind), profile, cut, param), len(before))
    joined = tokenizer.encoder.post_process(one, other, cut.special)
    second_from = joined.type_ids.index(1) if 1 in joined.type_ids else 0
    return JoinedTexts(_checked(tuple(joined.ids), profile, cut, param), second_from)


def judgement(
    query: str, document: str, instruction: str | None, profile: ModelProfile, cut: Cut, *, param: str
) -> tuple[int, ...]:
    """Ids of the question whether a document meets a query; a cut is taken from the document. Raises Refused."""
    tokenizer, room = profile.tokenizer, _room(cut, profile)
    before = f"{JUDGE_HEAD}<Instruct>: {instruction or DEFAULT_INSTRUCTION}\n<Query>: {query}\n<Document>: "
    most = profile.max_context
    head, body, tail = (_encoded(tokenizer, text, most, profile) for text in (before, document, JUDGE_TAIL))
    kept = min(len(body.ids), room - len(head.ids) - len(tail.ids), cut.second_keep or len(body.ids))
    if kept == len(body.ids):  # in one piece, as tokens may reach over the borders
        whole = _encoded(tokenizer, before + document + JUDGE_TAIL, most, profile)
        return _checked(tuple(whole.ids), profile, cut, param)
    body.truncate(max(0, kept))
    return _checked((*head.ids, *body.ids, *tail.ids), profile, cut, param)


def _room(cut: Cut, profile: ModelProfile) -> int:
    """Most tokens that a prompt may keep."""
    if cut.keep is None or cut.keep > 2 * profile.max_context:
        return 2 * profile.max_context
    return profile.max_context if cut.keep < 0 else cut.keep


def _encoded(tokenizer: Tokenizer, text: str, enough: int, profile: ModelProfile) -> Encoding:
    """The beginning of a text with enough tokens, or twice those that fit: the rest is cut off, or refused."""
    text = tokenizer.text_encoder.beginning(text, min(enough, 2 * profile.max_context) + 1)
    return tokenizer.encoder.encode_batch_fast([text], add_special_tokens=False)[0]


def _surrounded(tokenizer: Tokenizer, encoded: Encoding, *, special: bool) -> tuple[int, ...]:
    """Ids of one text, with what is around it."""
    behind = (tokenizer.text_end,) if special and tokenizer.text_end is not None else ()
    return (*tokenizer.encoder.post_process(encoded, None, special).ids, *behind)


def _num_special(tokenizer: Tokenizer, cut: Cut, *, is_pair: bool) -> int:
    if not cut.special:
        return 0
    if tokenizer.text_end is None:
        return int(tokenizer.encoder.num_special_tokens_to_add(is_pair))
    return (1 + is_pair) * (int(tokenizer.encoder.num_special_tokens_to_add(False)) + 1)


def _checked(ids: tuple[int, ...], profile: ModelProfile, cut: Cut, param: str) -> tuple[int, ...]:
    if not ids:
        raise _refused("The text is empty.", param)
    if len(ids) > profile.max_context:
        if cut.keep is not None and cut.keep > profile.max_context:
            message = f"truncate_prompt_tokens {cut.keep} is more than the {profile.max_context} tokens that fit."
            raise _refused(message, "truncate_prompt_tokens")
        shortened = len(ids) >= 2 * profile.max_context
        raise Refused(
            openai_errors.context_length(
                limit=profile.max_context, prompt_tokens=len(ids), max_tokens=0, at_least=shortened, param=param
            )
        )
    return ids


def _refused(message: str, param: str) -> Refused:
    return Refused(openai_errors.invalid(message, param=param, code="invalid_value"))
