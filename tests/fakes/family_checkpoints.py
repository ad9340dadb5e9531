"""Tiny random checkpoints of families that `checkpoints` does not write, by transformers itself: its names and shapes.

Where the library has no such family, Llama is computed and its tensors are stored as the family's own code names them.
The config.json is as checkpoints on the hub have it. It must not import our packages.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.bloom.modeling_bloom import _get_alibi_slopes

from fakes.family_configs import MODELS, NULLS, SIZES

EXPERTS_APART = (
    *("olmoe", "deepseek_v2", "deepseek_v3", "glm4_moe", "dots1", "solar_open", "hunyuan_v1_moe", "minimax_m2"),
    *("ernie4_5_moe", "glm4_moe_lite", "phimoe"),
)
BUFFERS = ("e_score_correction_bias", "act_fn.beta", "act_fn.eps")
RENAMED = {
    "minimax_m2": {"mlp.": "block_sparse_moe.", "gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"},
    "phimoe": {
        "mlp.": "block_sparse_moe.",
        "gate_proj": "w1",
        "up_proj": "w3",
        "down_proj": "w2",
        ".router.": ".gate.",
    },
    "ernie4_5_moe": {"gate.moe_statics": "moe_statics"},
}
NAMES_OF_CHATGLM = {
    "self_attn.W_pack": "self_attention.query_key_value",
    "self_attn.o_proj": "self_attention.dense",
    "mlp.gate_up_proj": "mlp.dense_h_to_4h",
    "mlp.down_proj": "mlp.dense_4h_to_h",
    "model.embed_tokens": "transformer.embedding.word_embeddings",
    "model.layers": "transformer.encoder.layers",
    "model.norm": "transformer.encoder.final_layernorm",
    "lm_head": "transformer.output_layer",
}


def write(folder: Path, name: str, **changed: Any) -> torch.nn.Module:
    """A checkpoint without a tokenizer; what it returns computes the same, in float32. changed: of its fields."""
    model = MODELS[name]
    folder.mkdir(parents=True, exist_ok=True)
    given = SIZES | model.config | changed
    given = {key: value for key, value in given.items() if value is not None or key in NULLS}
    given["model_type"] = model.family
    (folder / "config.json").write_text(json.dumps(given | {"architectures": [model.architecture]}))
    config = AutoConfig.for_model(**given | model.like)
    config._attn_implementation = model.attention
    judge: torch.nn.Module = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(sum(name.encode()))
    weights = dict[str, Tensor]()
    with torch.no_grad():
        for key, parameter in tensors_of(judge).items():
            mean = 1.0 if "norm" in key and key.endswith("weight") else 0.0
            mean = 1.0 if re.search(r"ln_\w+\.weight", key) else mean
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1 + mean)
            weights[key] = parameter.detach().clone()
        if given.get("normalised_head"):
            head = judge.get_parameter("lm_head.weight")
            head.copy_(torch.nn.functional.normalize(head))
    stored = _stored(weights, model.family, given)
    for index in range(given.get("num_nextn_predict_layers", 0)):  # which drafts, and is not computed
        stored[f"model.layers.{given['num_hidden_layers'] + index}.eh_proj.weight"] = torch.zeros(4, 4)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    return WithAlibi(judge, given["num_attention_heads"]) if name == "baichuan-13b" else judge


class WithAlibi(torch.nn.Module):
    """Llama whose heads do not turn and whose scores lose with the distance."""

    def __init__(self, llama: torch.nn.Module, heads: int) -> None:
        super().__init__()
        self.llama = llama
        self.slopes = _get_alibi_slopes(heads, torch.device("cpu"))
        llama.get_buffer("model.rotary_emb.inv_freq").zero_()

    def forward(self, tokens: Tensor, use_cache: bool = False) -> Any:
        """As a causal model of transformers."""
        places = torch.arange(tokens.shape[1])
        distances = places - places[:, None]
        mask = (self.slopes[:, None, None] * distances).masked_fill(distances > 0, torch.finfo(torch.float32).min)
        return self.llama(tokens, attention_mask=mask[None], use_cache=use_cache)


def tensors_of(judge: torch.nn.Module) -> dict[str, Tensor]:
    """All that a checkpoint has."""
    buffers = {key: one for key, one in judge.named_buffers() if key.endswith(BUFFERS)}
    return dict(judge.named_parameters()) | buffers


def _stored(weights: dict[str, Tensor], family: str, config: dict[str, Any]) -> dict[str, Tensor]:
    """Under the names of the family, where transformers has others or none."""
    if family.startswith("granitemoe"):
        names = {"experts.gate_up_proj": "input_linear.weight", "experts.down_proj": "output_linear.weight"}
        return _renamed(
            weights,
            {f"block_sparse_moe.{theirs}": f"block_sparse_moe.{ours}" for theirs, ours in names.items()}
            | {"moe.router.weight": "moe.router.layer.weight"},
        )
    if family == "nemotron_h":
        return _renamed(dict(_experts_apart(weights)), {"model.": "backbone."})
    if family in EXPERTS_APART:
        apart = dict(_experts_apart(weights))
        return _renamed(apart, RENAMED.get(family, {}))
    if family == "baichuan":
        return dict(_merged(weights))
    if family == "chatglm":
        buffer = {"transformer.rotary_pos_emb.inv_freq": torch.zeros(4)}
        return _renamed(dict(_merged(weights)), NAMES_OF_CHATGLM) | buffer
    if family != "internlm2":
        return weights
    names = {"embed_tokens": "tok_embeddings", "self_attn.o_proj": "attention.wo", "lm_head": "output"}
    names |= {"mlp.gate_proj": "feed_forward.w1", "mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2"}
    names |= {"input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm"}
    groups, dim = config["num_key_value_heads"], config["hidden_size"] // config["num_attention_heads"]
    stored = dict[str, Tensor]()
    for key, weight in weights.items():
        if "q_proj" in key:
            parts = [weights[key.replace("q_proj", part)].view(groups, -1, dim, weight.shape[1]) for part in QKV]
            stored[key.replace("self_attn.q_proj", "attention.wqkv")] = torch.cat(parts, 1).reshape(-1, weight.shape[1])
        elif "k_proj" not in key and "v_proj" not in key:
            for theirs, ours in names.items():
                key = key.replace(theirs, ours)
            stored[key] = weight
    return stored


def _renamed(weights: dict[str, Tensor], names: dict[str, str]) -> dict[str, Tensor]:
    """With parts of names in place of others."""
    stored = dict[str, Tensor]()
    for key, weight in weights.items():
        for theirs, ours in names.items():
            key = key.replace(theirs, ours)
        stored[key] = weight
    return stored


QKV = ("q_proj", "k_proj", "v_proj")


def _merged(weights: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Queries, keys and values one below the other."""
    for key, weight in weights.items():
        if "q_proj" in key:
            parts = [weights[key.replace("q_proj", part)] for part in QKV]
            yield key.replace("q_proj", "W_pack"), torch.cat(parts)
        elif "k_proj" not in key and "v_proj" not in key:
            yield key, weight


def _experts_apart(weights: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """A matrix for each expert, as checkpoints have them."""
    for key, weight in weights.items():
        stem, _, part = key.rpartition(".")
        if part == "gate_up_proj":
            for expert, both in enumerate(weight):
                for name, rows in zip(("gate_proj", "up_proj"), both.chunk(2), strict=True):
                    yield f"{stem}.{expert}.{name}.weight", rows.clone()
        elif part in ("up_proj", "down_proj"):
            for expert, rows in enumerate(weight):
                yield f"{stem}.{expert}.{part}.weight", rows.clone()
        else:
            yield key, weight


def experts_together(weights: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The matrices of all experts as one tensor each, as transformers computes with them."""
    stems = {key.partition(".experts.")[0] + ".experts." for key in weights if ".experts." in key}
    yield from ((key, weight) for key, weight in weights.items() if ".experts." not in key)
    for stem in stems:
        count = len({key.removeprefix(stem).partition(".")[0] for key in weights if key.startswith(stem)})
        gates, ups, downs = (
            torch.stack([weights[f"{stem}{expert}.{name}_proj.weight"] for expert in range(count)])
            for name in ("gate", "up", "down")
        )
        yield stem + "gate_up_proj", torch.cat((gates, ups), dim=1)
        yield stem + "down_proj", downs
