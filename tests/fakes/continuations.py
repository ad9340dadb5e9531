"""Requests of every kind whose streams can be continued, and what makes two of their answers comparable."""

import re
import sys
from pathlib import Path
from typing import Any

REAL = (sys.executable, "-m", "kvasir_runtime", "serve")
KEY = "a key of thirty-two characters.."
TEMPLATE = (
    "{# <tool_call> <think> #}{% for t in tools or [] %}{{ t.function.name }};{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "the plan of the engine"}],
    "stream_options": {"include_usage": True},
}
TEXT: dict[str, Any] = {"prompt": "the operator watches the services", "stream_options": {"include_usage": True}}
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"cities": {"type": "array", "items": {"enum": ["Köln", "Oslo"]}, "minItems": 9, "maxItems": 9}},
    "required": ["cities"],
    "additionalProperties": False,
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS, "strict": True}}
]
FORM: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "trip", "schema": PARAMETERS, "strict": True}}
DRAWN: dict[str, Any] = {"temperature": 1.3, "seed": 7}
ENDLESS: dict[str, Any] = {"ignore_eos": True, "max_tokens": 40}
MANY: list[dict[str, Any]] = [{"role": "user", "content": "plan"}]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy chat": ("/v1/chat/completions", CHAT | ENDLESS | {"temperature": 0}),
    "drawn": ("/v1/chat/completions", CHAT | ENDLESS | DRAWN | {"top_p": 0.9, "frequency_penalty": 0.3}),
    "no seed": ("/v1/chat/completions", CHAT | {"max_tokens": 40, "temperature": 1.0}),
    "logprobs": ("/v1/chat/completions", CHAT | ENDLESS | DRAWN | {"logprobs": True, "top_logprobs": 3}),
    "n": ("/v1/chat/completions", CHAT | DRAWN | {"n": 3, "max_tokens": 40, "logprobs": True}),
    "schema": ("/v1/chat/completions", CHAT | DRAWN | {"response_format": FORM, "max_tokens": 200}),
    "tools": ("/v1/chat/completions", CHAT | DRAWN | {"tools": TOOLS, "tool_choice": "required", "max_tokens": 200}),
    "counted": (
        "/v1/chat/completions",
        CHAT | ENDLESS | DRAWN | {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ),
    "ids": ("/v1/chat/completions", CHAT | ENDLESS | DRAWN | {"return_token_ids": True}),
    "completion": ("/v1/completions", TEXT | ENDLESS | DRAWN | {"logprobs": 2, "echo": True}),
    "completions": ("/v1/completions", TEXT | DRAWN | {"prompt": ["a plan", "the engine"], "n": 2, "max_tokens": 30}),
    "stops": ("/v1/completions", TEXT | ENDLESS | DRAWN | {"stop": ["never here", "\u00ff\u00ff"], "logprobs": 1}),
    "response": ("/v1/responses", {"input": "the plan", "max_output_tokens": 40, "temperature": 1.3}),
    "response with a call": (
        "/v1/responses",
        {
            "input": "the plan",
            "tools": [{"type": "function", **TOOLS[0]["function"]}],
            "tool_choice": "required",
            "include": ["message.output_text.logprobs"],
            "max_output_tokens": 200,
        },
    ),
    "message": ("/v1/messages", {"messages": MANY, "max_tokens": 40, "temperature": 1.0}),
}
CHOICE = r'"choices":\[\{"index":(\d)'
COMMENT = re.compile(rb"^: kvasir-continuation (\S+)$", re.MULTILINE)


def options(keys: Path) -> tuple[str, ...]:
    """Of a server that continues streams with the keys in a file."""
    return (
        *("--served-model-name", "tiny", "--kv-cache-tokens", "16384", "--max-model-len", "1024", "--device", "cpu"),
        *("--dtype", "float32", "--no-prefix-cache", "--chat-template", TEMPLATE),
        *("--tool-call-parser", "hermes", "--continuation-key-file", str(keys), "--drain-timeout", "0"),
    )


def same(answer: bytes) -> str:
    """An answer, choice by choice, with names in place of what is new in each: identifiers, times, and counts beside
    text, which depend on how many tokens one write has."""
    text = re.sub(r'(\}\],"usage":)\{[^{}]*(\{[^{}]*\}[^{}]*)*\}', r"\1{}", answer.decode())
    text = re.sub(r'"(created|created_at|completed_at)":\d+', r'"\1":0', text)
    names = dict[str, str]()
    pattern = r"(?:chatcmpl|cmpl|resp|msg|fc|rs|call|toolu)[-_][A-Za-z0-9]{9,}"
    text = re.sub(pattern, lambda found: names.setdefault(found[0], f"<{len(names)}>"), text)
    return "".join(sorted(text.splitlines(keepends=True), key=lambda line: (re.findall(CHOICE, line) or ["9"])[0]))


def long(body: dict[str, Any]) -> dict[str, Any]:
    """The body with an answer that is long enough to run still when its server is stopped."""
    return body | {"max_tokens": 400} if "ignore_eos" in body else body
