"""Kvasir's runtime: `kvasir serve`, and the same engine as a library: `from kvasir_runtime import LLM, SamplingParams`.

What is named here is imported when it is first asked for, so that every process pays only for what it uses.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvasir_runtime.offline.llm import LLM as LLM
    from kvasir_runtime.offline.output import Completion as Completion
    from kvasir_runtime.offline.output import Logprob as Logprob
    from kvasir_runtime.offline.output import Output as Output
    from kvasir_runtime.offline.params import BeamSearchParams as BeamSearchParams
    from kvasir_runtime.offline.params import SamplingParams as SamplingParams
    from kvasir_runtime.offline.session import EngineError as EngineError
    from kvasir_runtime.offline.session import PromptError as PromptError

_HOMES = {
    "LLM": "offline.llm",
    "Completion": "offline.output",
    "BeamSearchParams": "offline.params",
    "Logprob": "offline.output",
    "Output": "offline.output",
    "EngineError": "offline.session",
    "PromptError": "offline.session",
    "SamplingParams": "offline.params",
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
