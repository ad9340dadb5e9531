"""Writes tiny random checkpoints in Hugging Face's layout: every family, one file or shards, with a real tokenizer.

Used by the model and runner tests (beside `transformers` as the oracle), the server's tests and the e2e tests. It must
not import our packages: the oracle reads the same files, so a wrong name here would be seen by both.
"""

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
EOS_TOKEN_ID = 0
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRAINING_TEXT = (
    "The operator watches the services and writes what it wants; the engine reads a plan and answers with tokens.\n"
    "A block of the cache is pinned, cached or free, and the three always sum to the capacity.\n"
    "The gateway chooses the pod that already holds the prefix of the request, unless its queue is too long.\n"
    "One step is in flight; the scheduler takes blocks, the runner launches, and the results are committed.\n"
)
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
}
FAMILIES = tuple(ARCHITECTURES)
GEMMA = ("gemma2", "gemma3_text")
# What gate, up and down of an expert are called, and what they are in.
EXPERTS = {
    "mixtral": ("block_sparse_moe", ("w1", "w3", "w2")),
    "qwen2_moe": ("mlp", ("gate_proj", "up_proj", "down_proj")),
    "qwen3_moe": ("mlp", ("gate_proj", "up_proj", "down_proj")),
    "qwen3_next": ("mlp", ("gate_proj", "up_proj", "down_proj")),
    "deepseek_v2": ("mlp", ("gate_proj", "up_proj", "down_proj")),
}
MERGED = {
    "layers.0.qkv.weight": ("self_attn", "q", "k", "v"),
    "layers.0.output.weight": ("self_attn", "o"),
    "layers.0.gate_up.weight": ("mlp", "gate", "up"),
    "layers.0.down.weight": ("mlp", "down"),
}
"""Block and projections of each matrix of the first layer as the engine has it."""
SHARED_EXPERT = ("qwen2_moe", "qwen3_next")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A model small enough to run thousands of tokens a second anywhere. extra is merged into config.json last."""

    family: str = "llama"
    hidden_size: int = 64
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    intermediate_size: int = 96
    num_experts: int = 8
    top_k: int = 2
    expert_size: int = 32
    shared_size: int = 48
    vocab_size: int = 320
    max_position_embeddings: int = 4096
    tied: bool = False
    dtype: torch.dtype = torch.float32
    seed: int = 0
    std: float = 0.08
    extra: dict[str, Any] = field(default_factory=dict)


def write(
    folder: Path,
    shape: Shape | None = None,
    *,
    num_shards: int = 1,
    head: str = "ForCausalLM",
    labels: int = 3,
    prefix: bool = True,
) -> Path:
    """Write one complete checkpoint into folder (made if needed) and return it. The same shape gives the same bytes.

    head: ForCausalLM, ForSequenceClassification (of so many labels) or Model; without prefix its names begin as those
    of a saved Model do.
    """
    shape = shape or Shape()
    if head == "ForSequenceClassification":
        names = {str(label): f"LABEL_{label}" for label in range(labels)}
        shape = replace(
            shape, extra={"id2label": names, "label2id": {v: int(k) for k, v in names.items()}, **shape.extra}
        )
    shape = replace(
        shape, extra={"architectures": [ARCHITECTURES[shape.family].replace("ForCausalLM", head)], **shape.extra}
    )
    folder.mkdir(parents=True, exist_ok=True)
    config = config_json(shape)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {"eos_token_id": EOS_TOKEN_ID, "bos_token_id": EOS_TOKEN_ID})
    weights = random_weights(shape)
    if head != "ForCausalLM":
        weights.pop("lm_head.weight", None)
    if head == "ForSequenceClassification":
        generator = torch.Generator().manual_seed(shape.seed + 1)
        weights["score.weight"] = (torch.randn(labels, shape.hidden_size, generator=generator) / 8).to(shape.dtype)
    if not prefix:
        weights = {name.removeprefix("model."): tensor for name, tensor in weights.items()}
    write_weights(folder, weights, num_shards=num_shards)
    write_tokenizer(folder, shape.vocab_size, shape.max_position_embeddings)
    return folder


def config_json(shape: Shape) -> dict[str, Any]:
    """The config.json of a shape, with the keys that the family's real checkpoints carry."""
    config: dict[str, Any] = {
        "architectures": [ARCHITECTURES[shape.family]],
        "model_type": shape.family,
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.intermediate_size,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.max_position_embeddings,
        "tie_word_embeddings": shape.tied,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "bos_token_id": EOS_TOKEN_ID,
        "eos_token_id": EOS_TOKEN_ID,
        "torch_dtype": str(shape.dtype).removeprefix("torch."),
    }
    if shape.family in ("qwen2", "qwen2_moe"):
        del config["head_dim"]  # Qwen2 has none: it is hidden_size / num_attention_heads
    if shape.family.startswith("qwen"):
        config |= {"use_sliding_window": False, "max_window_layers": shape.num_layers, "sliding_window": None}
    if shape.family in ("mistral", "mixtral"):
        config["sliding_window"] = None
    if shape.family in EXPERTS:
        config |= _experts_json(shape)
    if shape.family in GEMMA:
        config |= _gemma_json(shape)
    if shape.family == "qwen3_next":
        config |= _qwen3_next_json(shape)
    if shape.family == "deepseek_v2":
        config |= _deepseek_v2_json(shape)
        for name in ("head_dim", "num_experts", "decoder_sparse_step", "mlp_only_layers"):
            del config[name]
    return config | shape.extra


def _gemma_json(shape: Shape) -> dict[str, Any]:
    """As the first checkpoints of each family have it, but for small windows and caps that small scores reach."""
    gelu = "gelu_pytorch_tanh"
    common = {"hidden_act": gelu, "hidden_activation": gelu, "query_pre_attn_scalar": 24, "sliding_window": 24}
    if shape.family == "gemma2":
        return common | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0}
    return common | {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 2}


def _deepseek_v2_json(shape: Shape) -> dict[str, Any]:
    """As V2-Lite has it: one layer without experts, queries without a latent of their own."""
    return {
        "num_key_value_heads": shape.num_heads,
        "kv_lora_rank": 24,
        "q_lora_rank": None,
        "qk_nope_head_dim": 12,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "n_routed_experts": shape.num_experts,
        "n_shared_experts": 2,
        "first_k_dense_replace": 1,
        "topk_method": "greedy",
        "scoring_func": "softmax",
        "routed_scaling_factor": 1.5,
        "norm_topk_prob": False,
    }


def _qwen3_next_json(shape: Shape) -> dict[str, Any]:
    """Two value heads for each key head. Half of the layers have a state unless told otherwise."""
    return {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 8,
        "linear_conv_kernel_dim": 4,
        "partial_rotary_factor": 0.25,
        "layer_types": [("full" if layer % 2 else "linear") + "_attention" for layer in range(shape.num_layers)],
    }


def _experts_json(shape: Shape) -> dict[str, Any]:
    """As the first checkpoints of each family have it."""
    if shape.family == "mixtral":  # whose experts are of intermediate_size
        sizes = {"num_local_experts": shape.num_experts, "intermediate_size": shape.expert_size}
        return sizes | {"num_experts_per_tok": shape.top_k, "output_router_logits": False}
    config = {
        "num_experts": shape.num_experts,
        "num_experts_per_tok": shape.top_k,
        "moe_intermediate_size": shape.expert_size,
        "norm_topk_prob": shape.family in ("qwen3_moe", "qwen3_next"),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }
    return config | ({"shared_expert_intermediate_size": shape.shared_size} if shape.family in SHARED_EXPERT else {})


def random_weights(shape: Shape) -> dict[str, torch.Tensor]:
    """Seeded normal weights under the names of the family's checkpoints. Norms are near 1, biases are not zero."""
    one = 0.0 if shape.family in (*GEMMA, "qwen3_next") else 1.0  # whose norms are stored less 1
    generator = torch.Generator().manual_seed(shape.seed)

    def normal(*size: int, mean: float = 0.0) -> torch.Tensor:
        return (torch.randn(*size, generator=generator) * shape.std + mean).to(shape.dtype)

    hidden, heads, kv = shape.hidden_size, shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    weights = {"model.embed_tokens.weight": normal(shape.vocab_size, hidden)}
    bias = shape.family in ("qwen2", "qwen2_moe") or shape.extra.get("attention_bias", False)
    gated = shape.family == "qwen3_next"
    types = config_json(shape).get("layer_types") or [""] * shape.num_layers
    for layer in range(shape.num_layers):
        prefix = f"model.layers.{layer}."
        weights[prefix + "input_layernorm.weight"] = normal(hidden, mean=one)
        weights[prefix + "post_attention_layernorm.weight"] = normal(hidden, mean=one)
        if shape.family in GEMMA:
            weights[prefix + "pre_feedforward_layernorm.weight"] = normal(hidden)
            weights[prefix + "post_feedforward_layernorm.weight"] = normal(hidden)
        if types[layer] == "linear_attention":
            weights |= {
                prefix + "linear_attn." + name: normal(*size) for name, size in _linear_attention(shape).items()
            }
        elif shape.family == "deepseek_v2":
            for name, size in _latent_attention(shape).items():
                weights[f"{prefix}self_attn.{name}.weight"] = normal(*size, mean=1.0 if len(size) == 1 else 0.0)
        else:
            for name, rows in (("q_proj", heads * (2 if gated else 1)), ("k_proj", kv), ("v_proj", kv)):
                weights[f"{prefix}self_attn.{name}.weight"] = normal(rows, hidden)
                if bias:
                    weights[f"{prefix}self_attn.{name}.bias"] = normal(rows)
            weights[prefix + "self_attn.o_proj.weight"] = normal(hidden, heads)
            if shape.family == "llama" and bias:
                weights[prefix + "self_attn.o_proj.bias"] = normal(hidden)
            if gated or shape.family in ("qwen3", "qwen3_moe", "gemma3_text"):
                weights[prefix + "self_attn.q_norm.weight"] = normal(shape.head_dim, mean=one)
                weights[prefix + "self_attn.k_norm.weight"] = normal(shape.head_dim, mean=one)
        for name, size in _feed_forward(shape, layer).items():
            weights[prefix + name + ".weight"] = normal(*size)
    weights["model.norm.weight"] = normal(hidden, mean=one)
    if not shape.tied:
        weights["lm_head.weight"] = normal(shape.vocab_size, hidden)
    return weights


def _latent_attention(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors of a layer with latent attention."""
    config, heads, hidden = config_json(shape), shape.num_heads, shape.hidden_size
    rank, turned, query_rank = config["kv_lora_rank"], config["qk_rope_head_dim"], config["q_lora_rank"]
    rows = heads * (config["qk_nope_head_dim"] + turned)
    query: dict[str, tuple[int, ...]] = {"q_proj": (rows, hidden)}
    if query_rank:
        query = {"q_a_proj": (query_rank, hidden), "q_a_layernorm": (query_rank,), "q_b_proj": (rows, query_rank)}
    return query | {
        "kv_a_proj_with_mqa": (rank + turned, hidden),
        "kv_a_layernorm": (rank,),
        "kv_b_proj": (heads * (config["qk_nope_head_dim"] + config["v_head_dim"]), rank),
        "o_proj": (hidden, heads * config["v_head_dim"]),
    }


def _linear_attention(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors of a layer with a state."""
    config = config_json(shape)
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    heads, dim = config["linear_num_value_heads"], config["linear_value_head_dim"]
    return {
        "in_proj_qkvz.weight": (2 * keys + 2 * heads * dim, shape.hidden_size),
        "in_proj_ba.weight": (2 * heads, shape.hidden_size),
        "conv1d.weight": (2 * keys + heads * dim, 1, config["linear_conv_kernel_dim"]),
        "dt_bias": (heads,),
        "A_log": (heads,),
        "norm.weight": (dim,),
        "out_proj.weight": (shape.hidden_size, heads * dim),
    }


def _feed_forward(shape: Shape, layer: int) -> dict[str, tuple[int, int]]:
    """Names and shapes of the matrices behind a layer's attention."""
    hidden, config = shape.hidden_size, config_json(shape)

    def three(prefix: str, inner: int, names: tuple[str, ...]) -> dict[str, tuple[int, int]]:
        return dict(
            zip((prefix + name for name in names), ((inner, hidden), (inner, hidden), (hidden, inner)), strict=True)
        )

    usual = EXPERTS["qwen3_moe"][1]
    dense = layer in config.get("mlp_only_layers", ()) or layer < config.get("first_k_dense_replace", 0)
    if shape.family not in EXPERTS or dense:
        return three("mlp.", shape.intermediate_size, usual)
    block, names = EXPERTS[shape.family]
    sizes = {f"{block}.gate": (shape.num_experts, hidden)}
    for expert in range(shape.num_experts):
        sizes |= three(f"{block}.experts.{expert}.", shape.expert_size, names)
    if shape.family == "deepseek_v2":
        sizes |= three(f"{block}.shared_experts.", config["n_shared_experts"] * shape.expert_size, names)
    if shape.family in SHARED_EXPERT:
        sizes |= three(f"{block}.shared_expert.", shape.shared_size, names)
        sizes[f"{block}.shared_expert_gate"] = (1, hidden)
    return sizes


def is_matrix(name: str, names: Container[str] | None) -> bool:
    """Whether a module that rewrites checkpoints in fewer bits takes a tensor: one of names, a projection without."""
    return name.endswith("proj.weight") if names is None else name in names


def write_weights(folder: Path, weights: dict[str, torch.Tensor], *, num_shards: int = 1) -> None:
    """Write model.safetensors, or num_shards files and their index."""
    if num_shards == 1:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(weights)
    index: dict[str, str] = {}
    for shard in range(num_shards):
        file = f"model-{shard + 1:05d}-of-{num_shards:05d}.safetensors"
        part = {name: weights[name] for name in names[shard::num_shards]}
        save_file(part, folder / file, metadata={"format": "pt"})
        index |= dict.fromkeys(part, file)
    total = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    _write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": index})


def merged(worth: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The matrices of the first layer as the engine has them, by its names. worth: by those of the checkpoint."""
    return {
        ours: torch.cat([worth[f"model.layers.0.{block}.{name}_proj.weight"] for name in names])
        for ours, (block, *names) in MERGED.items()
    }


def write_tokenizer(folder: Path, vocab_size: int = 320, model_max_length: int = 4096) -> Tokenizer:
    """Train a byte-level BPE of at most vocab_size ids (every byte has one) and write it with a chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TRAINING_TEXT], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    end = SPECIAL_TOKENS[EOS_TOKEN_ID]
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": model_max_length,
            "bos_token": end,
            "eos_token": end,
            "pad_token": end,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    _write_json(folder / "special_tokens_map.json", {"bos_token": end, "eos_token": end, "pad_token": end})
    return tokenizer


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")
