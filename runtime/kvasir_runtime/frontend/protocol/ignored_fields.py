"""Fields of OpenAI's and other servers' requests that have no effect here, and which of their values are harmless.

Read by validation.py. A label changes nothing by its own documentation. A hint is taken with any value, and named to
the client where it would change something elsewhere. The others would change the answer: they are refused by name with
any value but those that ask for nothing. Fields that work are in the bodies; fields in neither are unknown.
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


def hint(*values: Any) -> tuple[Callable[[Any], bool], str]:
    """A row of a table: any value is taken; others than these are named to the client, as they have no effect."""
    return _one_of(*values), ""


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
    "spaces_between_special_tokens": hint(True),
    "stream_interval": (_number(1), ""),
    "thinking_token_budget": (_number(-1), "-1"),
    "routed_experts_prompt_start": (_number(0), "0"),
    "watermarking": (_one_of(False), "false"),
    "repetition_detection": (_one_of(), "null"),
    "vllm_xargs": (_empty, "{}"),
    "kv_transfer_params": (_empty, "{}"),
    "ec_transfer_params": (_empty, "{}"),
    "logits_processors": (_empty, "[]"),
    "service_tier": hint("auto", "default"),
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
    "prediction": hint(),
    "verbosity": hint("medium"),
    "web_search_options": hint(),
    "moderation": hint(),
    "store": hint(False),
    "chat_template": (_one_of(), "null"),
    "documents": (_one_of(), "null"),
    "return_prompt_text": (_one_of(False), "false"),
    "media_io_kwargs": (_empty, ""),
    "mm_processor_kwargs": (_empty, ""),
}
TOKENIZE: Final = {
    **{name: CHAT[name] for name in ("chat_template", "documents")},
}
"""Name: which values ask for nothing, and how the refusal of any other names them; "" where none is refused."""
