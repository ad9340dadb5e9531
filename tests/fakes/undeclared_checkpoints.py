"""Tiny random checkpoints of architectures that no family of ours declares, by transformers itself.

It must not import our packages.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

VOCAB = 320
TIE = 1e-4
"""Two tokens whose logits differ by less are a tie: either is right."""
SIZES: dict[str, Any] = {"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
LLAMA: dict[str, Any] = SIZES | {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
EXPERTS: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", SIZES | {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 256}),
    "gpt-neox": ("gpt_neox", LLAMA),
    "opt": ("opt", LLAMA | {"ffn_dim": 96, "word_embed_proj_dim": 32}),
    "gemma": ("gemma", LLAMA | {"head_dim": 24}),
    "smollm3": ("smollm3", LLAMA),
    "granite-moe": ("granitemoe", LLAMA | EXPERTS | {"logits_scaling": 4.0}),
    "exaone4-windows": ("exaone4", LLAMA | {"sliding_window": 12, "sliding_window_pattern": 4}),
    "llama4-chunks": (
        "llama4_text",
        LLAMA | EXPERTS | {"attention_chunk_size": 12, "head_dim": 16, "intermediate_size_mlp": 96},
    ),
    "minicpm3-wider-keys": (
        "minicpm3",
        LLAMA
        | {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12}
        | {"num_key_value_heads": 4, "head_dim": 8},
    ),
}
CHOSEN = ("llama4-chunks", "smollm3", "exaone4-windows", "granite-moe")
"""Declared too, and computed so where an option says so: no others have chunks, layers that do not turn, or experts
behind a softmax."""
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba": ("mamba", SIZES | {"hidden_size": 64, "num_hidden_layers": 2, "state_size": 8}),
    "lfm2": ("lfm2", LLAMA | {"layer_types": ["conv", "full_attention", "conv", "full_attention"]}),
    "bloom": ("bloom", SIZES | {"hidden_size": 64, "n_head": 4, "n_layer": 2}),
    "bert": ("bert", LLAMA | {"is_decoder": False}),
}


def write(folder: Path, name: str, **changed: Any) -> Any:
    """A checkpoint without a tokenizer; what it returns computes the same, in float32. changed: of its fields."""
    family, fields = (MODELS | REFUSED)[name]
    config = AutoConfig.for_model(family, **fields | changed)
    config._attn_implementation = "eager"
    judge: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(sum(name.encode()))
    with torch.no_grad():
        for key, parameter in judge.named_parameters():
            mean = 1.0 if ("norm" in key or "ln_" in key) and key.endswith("weight") else 0.0
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1 + mean)
    judge.save_pretrained(folder)
    return judge


@torch.inference_mode()
def generated(judge: Any, prompt: Sequence[int], count: int) -> list[int]:
    """The library's own greedy answer of count tokens, with its own cache."""
    ids = torch.tensor([list(prompt)])
    length = {"max_new_tokens": count, "min_new_tokens": count}
    found: list[int] = judge.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, **length)[0].tolist()
    return found[len(prompt) :]


@torch.inference_mode()
def wrong_tokens(judge: Any, prompt: Sequence[int], answer: Sequence[int]) -> list[int]:
    """Indices of tokens that are neither the best after those before them nor a tie with it."""
    logits = judge(torch.tensor([[*prompt, *answer]]), use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    given = logits.gather(1, torch.tensor(list(answer))[:, None])[:, 0]
    found: list[int] = (given < logits.amax(dim=1) - TIE).nonzero()[:, 0].tolist()
    return found


def is_generated(judge: Any, prompt: Sequence[int], answer: Sequence[int]) -> bool:
    """Whether an answer is the library's own, up to a tie at most."""
    own = generated(judge, prompt, len(answer))
    at = next((place for place, (one, other) in enumerate(zip(answer, own, strict=True)) if one != other), len(answer))
    return not wrong_tokens(judge, prompt, answer) and not wrong_tokens(judge, prompt, own[: at + 1])
