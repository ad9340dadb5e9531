"""Options of vLLM's LLM class in terms of ours, so that a program written for it runs. Pure.

An option means the same under another name, has no effect here, or may only have the value that changes nothing. Those
that have no effect are about how vLLM computes, not about what.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

RENAMED: Final = {
    "gpu_memory_utilization": "memory_fraction",
    "max_num_seqs": "max_sequences",
    "max_num_batched_tokens": "max_batch_tokens",
    "enable_prefix_caching": "prefix_cache",
}
WITHOUT_EFFECT: Final = frozenset(
    {
        "async_scheduling",
        "compilation_config",
        "disable_custom_all_reduce",
        "disable_log_requests",
        "disable_log_stats",
        "distributed_executor_backend",
        "enable_chunked_prefill",
        "max_logprobs",
        "max_seq_len_to_capture",
        "num_scheduler_steps",
        "scheduling_policy",
        "swap_space",
        "trust_remote_code",  # no code of a checkpoint is ever run
    }
)
ONLY: Final[dict[str, tuple[Any, ...]]] = {
    "cpu_offload_gb": (0,),
    "enable_lora": (False,),
    "load_format": ("auto", "safetensors", "gguf"),
    "skip_tokenizer_init": (False,),
    "speculative_config": (None,),
    "task": ("auto", "generate", "embed", "score", "reward", "classify"),
    "runner": ("auto", "generate", "pooling"),
    "convert": ("auto", "none", "embed", "classify", "reward"),
    "tokenizer_mode": ("auto", "slow"),
    "tokenizer_revision": (None,),
}
_DTYPES: Final = {"half": "float16", "float": "float32"}


def translated(options: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Our options. None means that an option is left out, as in vLLM. Raises ValueError for one that requests more."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        if value is None or name in WITHOUT_EFFECT:
            continue
        if name in ONLY:
            if value not in ONLY[name]:
                allowed = " or ".join(map(repr, ONLY[name]))
                raise ValueError(f"{name}={value!r} is not supported, only {allowed}")
        elif name == "tokenizer":
            if str(value) != model:
                raise ValueError(f"tokenizer={value!r} is not supported: the model's own tokenizer is used")
        elif name == "enforce_eager":
            found["cuda_graphs"] = not value
        else:
            found[RENAMED.get(name, name)] = _value(name, value)
    return found


def _value(name: str, value: Any) -> Any:
    if name == "dtype":
        text = str(value).removeprefix("torch.")  # torch's own types too
        return _DTYPES.get(text, text)
    if name == "kv_cache_dtype":
        return {"fp8_e4m3": "fp8"}.get(value, value)
    if name in ("hf_overrides", "eplb_config") and isinstance(value, Mapping):
        return json.dumps(value)
    if name == "generation_config":
        return "none" if value == "vllm" else value
    if name == "model_impl":
        return "kvasir" if value == "vllm" else value
    return value
