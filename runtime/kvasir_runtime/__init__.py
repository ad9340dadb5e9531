"""Kvasir's runtime: `kvasir serve`, and the same engine as a library: `from kvasir_runtime import LLM, SamplingParams`.

The names below are imported at their first use, so that every process loads only what it needs.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvasir_runtime.offline.async_llm import EngineError, PromptError
    from kvasir_runtime.offline.llm import LLM
    from kvasir_runtime.offline.outputs import Completion, Logprob, Output
    from kvasir_runtime.offline.sampling_params import BeamSearchParams, SamplingParams

_HOMES = {
    "LLM": "offline.llm",
    "Completion": "offline.outputs",
    "BeamSearchParams": "offline.sampling_params",
    "Logprob": "offline.outputs",
    "Output": "offline.outputs",
    "EngineError": "offline.async_llm",
    "PromptError": "offline.async_llm",
    "SamplingParams": "offline.sampling_params",
}

__all__ = [
    "LLM",
    "BeamSearchParams",
    "Completion",
    "EngineError",
    "Logprob",
    "Output",
    "PromptError",
    "SamplingParams",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
