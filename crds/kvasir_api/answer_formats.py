"""Formats in which models write calls of functions and mark their thoughts, as options name them."""

from typing import Literal

ToolCallParser = Literal[
    "auto",
    "none",
    "hermes",
    "llama3_json",
    "pythonic",
    "mistral",
    "mistral_v3",
    "qwen3_coder",
    "deepseek_v3",
    "deepseek_v31",
    "glm45",
    "glm47",
    "kimi_k2",
    "minimax",
    "minimax_m2",
    "granite",
    "gpt_oss",
]
ReasoningParser = Literal["auto", "none", "qwen3", "deepseek_r1", "mistral", "granite", "gpt_oss"]
