"""What programs written for vLLM pass to its class, in terms of ours."""

import json
from typing import Any

import pytest
import torch

from kvasir_api import eplb
from kvasir_runtime.offline import vllm_options
from kvasir_runtime.offline.llm import OPTIONS, _settings


@pytest.mark.parametrize(
    ("given", "want"),
    [
        (
            {
                "tensor_parallel_size": 1,
                "gpu_memory_utilization": 0.5,
                "enable_prefix_caching": False,
                "enforce_eager": True,
                "max_num_seqs": 8,
                "max_num_batched_tokens": 512,
                "max_model_len": 128,
            },
            {
                "tensor_parallel_size": 1,
                "memory_fraction": 0.5,
                "prefix_cache": False,
                "cuda_graphs": False,
                "max_sequences": 8,
                "max_batch_tokens": 512,
                "max_model_len": 128,
            },
        ),
        ({"trust_remote_code": True, "swap_space": 4, "disable_log_stats": True}, {}),
        ({"quantization": None, "max_model_len": None, "revision": None, "tokenizer": "m"}, {}),
        ({"dtype": "half"}, {"dtype": "float16"}),
        ({"dtype": torch.bfloat16}, {"dtype": "bfloat16"}),
        ({"kv_cache_dtype": "fp8_e4m3"}, {"kv_cache_dtype": "fp8"}),
        ({"generation_config": "vllm"}, {"generation_config": "none"}),
        ({"model_impl": "vllm"}, {"model_impl": "kvasir"}),
        ({"model_impl": "transformers"}, {"model_impl": "transformers"}),
        ({"hf_overrides": {"rope_scaling": None}}, {"hf_overrides": json.dumps({"rope_scaling": None})}),
        ({"eplb_config": {"window_size": 9}}, {"eplb_config": json.dumps({"window_size": 9})}),
        ({"data_parallel_size": 2, "enable_expert_parallel": True},) * 2,
        ({"block_size": 32, "quantization": "fp8"}, {"block_size": 32, "quantization": "fp8"}),
    ],
)
def test_options_in_our_terms(given: dict[str, Any], want: dict[str, Any]) -> None:
    assert vllm_options.translated(given, "m") == want


def test_experts_are_copied_as_vllm_is_asked_to() -> None:
    given = {"tensor_parallel_size": 2, "enable_expert_parallel": True, "enable_eplb": True}
    settings = _settings("m", {**given, "eplb_config": {"window_size": 9}})
    assert (settings.enable_eplb, eplb.parsed(settings.eplb_config).window_size) == (True, 9)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cpu_offload_gb": 2}, "cpu_offload_gb=2 is not supported, only 0"),
        ({"load_format": "pt"}, "only 'auto' or 'safetensors' or 'gguf'"),
        ({"tokenizer": "other"}, "the model's own tokenizer"),
        ({"enable_lora": True}, "enable_lora=True is not supported"),
    ],
)
def test_what_requires_more_is_refused_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        vllm_options.translated(given, "m")


def test_no_name_of_ours_is_taken_for_another() -> None:
    ours = OPTIONS | {"memory_fraction"}
    assert set(vllm_options.RENAMED.values()) <= ours
    assert not ours & ({*vllm_options.RENAMED, *vllm_options.ONLY} | vllm_options.WITHOUT_EFFECT)
