"""Fields of OpenAI's and other servers' requests that have no effect here, and which of their values are harmless.

Read by validation.py. A field is either accepted for what its documentation says (a label that changes nothing), or
accepted only with the values that ask for nothing; any other value is refused by name, so that no
client believes in an effect that does not happen. Fields that work are in the bodies; fields in neither are unknown.
"""

import json
from collections.abc import Callable
from typing import Any, Final


def _number(expected: float) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int | float) and not isinstance(value, bool) and value == expected


def _one_of(*expected: Any) -> Callable[[Any], bool]:
    return lambda value: any(type(value) is type(item) and value == item for item in expected)


def only(*values: Any) -> tuple[Callable[[Any], bool], str]:
    """A row of a table: the only values that are taken, besides null."""
    return _one_of(*values), " or ".join(map(json.dumps, values)) or "null"


def _empty(value: Any) -> bool:
    return isinstance(value, list | dict) and not value


LABELS: Final = frozenset(
    {
        "user",
        "metadata",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "session_id",
        "return_token_offsets",
        "return_mm_kwargs",
    }
)
"""Documented to leave the answer as it is; any value is taken and none is kept. The last two are of vLLM's renderer."""

_SHARED: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "spaces_between_special_tokens": (_one_of(True), "true"),
    "priority": (_number(0), "0"),
    "stream_interval": (_number(1), "1"),
    "thinking_token_budget": (_number(-1), "-1"),
    "routed_experts_prompt_start": (_number(0), "0"),
    "watermarking": (_one_of(False), "false"),
    "logprob_token_ids": (_one_of(), "null"),
    "repetition_detection": (_one_of(), "null"),
    "vllm_xargs": (_empty, "{}"),
    "kv_transfer_params": (_empty, "{}"),
    "ec_transfer_params": (_empty, "{}"),
    "logits_processors": (_empty, "[]"),
    "service_tier": (_one_of("auto", "default"), '"auto" or "default"'),
}

COMPLETION: Final = {
    **_SHARED,
    "suffix": (_one_of(""), "null"),
    "prompt_embeds": (_one_of(), "null"),
    "parallel_tool_calls": (_one_of(True, False), "true or false"),
}
CHAT: Final = {
    **_SHARED,
    "functions": (_empty, "[]"),
    "function_call": (_one_of("none", "auto"), '"none" or "auto"'),
    "modalities": (_one_of(["text"]), '["text"]'),
    "audio": (_one_of(), "null"),
    "prediction": (_one_of(), "null"),
    "verbosity": (_one_of("medium"), '"medium"'),
    "web_search_options": (_one_of(), "null"),
    "moderation": (_one_of(), "null"),
    "store": (_one_of(False), "false"),
    "chat_template": (_one_of(), "null"),
    "documents": (_one_of(), "null"),
    "echo": (_one_of(False), "false"),
    "return_prompt_text": (_one_of(False), "false"),
    "media_io_kwargs": (_empty, "{}"),
    "mm_processor_kwargs": (_empty, "{}"),
}
TOKENIZE: Final = {
    **{name: CHAT[name] for name in ("chat_template", "documents")},
}
"""Name: which values ask for nothing, and how the refusal of any other names them."""
