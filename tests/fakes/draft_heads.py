"""Checkpoints of heads that draft from hidden states, as they are published, and what they draft, by torch alone.

EAGLE-3 as its authors and SpecForge write it; layers that draft (MTP) as checkpoints of GLM-4.5 and DeepSeek-V3 have
them. It must not import our packages.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from fakes import checkpoints, family_checkpoints
from fakes.checkpoints import Shape

EPS = 1e-6
FEW_IDS = 240
"""Ids that a head of EAGLE-3 can draft, of 320."""
TRAINED_TOKENS = 256
"""Of a text that a head is trained with."""
QUIET = 0.03
"""What layers are multiplied with, so that the next token follows mostly from the last one, and can be drafted."""
HEADS, HEAD_DIM, THETA = 4, 16, 10000.0
Forward = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(tokens,) ids and (tokens, hidden) states before them -> logits and the states that take the model's place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """features: of (tokens,) ids, (tokens, hidden) as the head reads them first."""

    features: Callable[[Tensor], Tensor]
    forward: Forward

    @torch.inference_mode()
    def drafts(self, text: Sequence[int], count: int, first: int = 0) -> list[int]:
        """The most likely tokens behind a text, each as the head sees it. first: position that it reads first."""
        ids = torch.tensor(text)
        states, known = self.features(ids)[first:-1], ids[first + 1 :]
        found = list[int]()
        for _ in range(count):
            logits, given = self.forward(known, states)
            found.append(int(logits[-1].argmax()))
            known, states = torch.cat((known, torch.tensor(found[-1:]))), torch.cat((states, given[-1:]))
        return found


def calmed(folder: Path) -> None:
    """Let each layer of a checkpoint change less."""
    weights = load_file(folder / "model.safetensors")
    for name, weight in weights.items():
        if (
            ".layers." in name
            and "norm" not in name
            and name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight", "experts.down_proj"))
        ):
            weights[name] = weight * QUIET
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def write_eagle3(
    folder: Path,
    target: Path,
    *,
    likely: bool = True,
    own_embedding: bool = False,
    training_steps: int = 0,
    **changed: Any,
) -> Judge:
    """A head for a checkpoint of Llama. likely: its drafts are often right, else they are as chance has it.

    training_steps: in which it learns what the model answers. changed: fields of its config.json.
    """
    theirs = load_file(target / "model.safetensors")
    document = json.loads((target / "config.json").read_text())
    layers = document["num_hidden_layers"]
    weights, ids = _eagle3_weights(theirs, document, likely=likely, own_embedding=own_embedding)
    judge = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32, attn_implementation="eager")

    def features(tokens: Tensor) -> Tensor:
        with torch.no_grad():
            given = judge(tokens[None], output_hidden_states=True, use_cache=False)
        three = [given.hidden_states[layer][0] for layer in (2, layers // 2, layers - 3)]
        return torch.cat(three, dim=1) @ weights["fc.weight"].T

    def forward(tokens: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        embedded = theirs["model.embed_tokens.weight"][tokens]
        out = _eagle3_layer(weights, embedded, states)
        small = normed(out, weights["norm.weight"]) @ weights["lm_head.weight"].T
        logits = torch.full((len(tokens), document["vocab_size"]), -torch.inf)
        logits[:, ids] = small
        return logits, out

    head = Judge(features=features, forward=forward)
    if training_steps:
        learned = [weight for name, weight in weights.items() if name.endswith(".weight")]
        _train(head, learned, judge, ids, training_steps)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_eagle3_config(document) | changed))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return head


def _eagle3_weights(
    theirs: dict[str, Tensor], document: dict[str, Any], *, likely: bool, own_embedding: bool
) -> tuple[dict[str, Tensor], Tensor]:
    """And the ids that can be drafted."""
    hidden = document["hidden_size"]
    generator = torch.Generator().manual_seed(5)

    def normal(*size: int, mean: float = 0.0, std: float = 0.05) -> Tensor:
        return torch.randn(*size, generator=generator) * std + mean

    eye, width = torch.eye(hidden), HEADS * HEAD_DIM
    sharp = torch.cat((2.5 * eye, torch.zeros(hidden, hidden)), dim=1)  # each position sees itself
    ids = torch.randperm(document["vocab_size"], generator=generator)[:FEW_IDS].sort().values
    weights = {
        "fc.weight": normal(hidden, 3 * hidden, std=0.003),
        "midlayer.hidden_norm.weight": normal(hidden, mean=1.0),
        "midlayer.input_layernorm.weight": normal(hidden, mean=1.0),
        "midlayer.post_attention_layernorm.weight": normal(hidden, mean=1.0),
        "midlayer.self_attn.q_proj.weight": sharp + normal(width, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": sharp + normal(width, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": 0.4 * sharp + normal(width, 2 * hidden, std=0.01),
        "midlayer.self_attn.o_proj.weight": eye + normal(hidden, width, std=0.01),
        "midlayer.mlp.gate_proj.weight": normal(96, hidden),
        "midlayer.mlp.up_proj.weight": normal(96, hidden),
        "midlayer.mlp.down_proj.weight": normal(hidden, 96),
        "norm.weight": theirs["model.norm.weight"].clone(),
        "lm_head.weight": theirs["lm_head.weight"][ids].clone(),
        "d2t": ids - torch.arange(FEW_IDS),
        "t2d": torch.isin(torch.arange(document["vocab_size"]), ids),
    }
    if not likely:
        weights["norm.weight"], weights["lm_head.weight"] = normal(hidden, mean=1.0), normal(FEW_IDS, hidden)
    if own_embedding:
        weights["embed_tokens.weight"] = theirs["model.embed_tokens.weight"].clone()
    return weights, ids


def _eagle3_config(document: dict[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": document["hidden_size"],
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": document["vocab_size"],
        "draft_vocab_size": FEW_IDS,
        "max_position_embeddings": 2048,
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }


def _train(head: Judge, learned: Sequence[Tensor], model: Any, ids: Tensor, steps: int) -> None:
    """Let a head learn, in place, what a model answers behind each token of random texts, and behind the token after
    that from states of its own.

    learned: its weights. ids: that it can draft.
    """
    for weight in learned:
        weight.requires_grad_()
    optimizer = torch.optim.Adam(learned, lr=0.004)
    generator, num_ids = torch.Generator().manual_seed(7), model.config.vocab_size
    for _ in range(steps):
        text = torch.randint(num_ids, (TRAINED_TOKENS,), generator=generator)
        with torch.no_grad():
            right = model(text[None], use_cache=False).logits[0].argmax(-1)
        right, loss = torch.where(torch.isin(right, ids), right, -100), torch.zeros(())
        states = head.features(text)
        for first in (1, 2):
            logits, states = head.forward(text[first:], states[:-1])
            loss = loss + F.cross_entropy(logits, right[first:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for weight in learned:
        weight.requires_grad_(False)


def _eagle3_layer(weights: dict[str, Tensor], embedded: Tensor, states: Tensor) -> Tensor:
    """(tokens, hidden): what the layer gives, before the last norm."""

    def of(name: str) -> Tensor:
        return weights[f"midlayer.{name}.weight"]

    both = torch.cat((normed(embedded, of("input_layernorm")), normed(states, of("hidden_norm"))), dim=1)
    query, key, value = (
        (both @ of(f"self_attn.{name}_proj").T).view(len(both), HEADS, HEAD_DIM).transpose(0, 1) for name in "qkv"
    )
    attended = F.scaled_dot_product_attention(_turned(query)[None], _turned(key)[None], value[None], is_causal=True)
    out = states + attended[0].transpose(0, 1).flatten(1) @ of("self_attn.o_proj").T
    narrow = normed(out, of("post_attention_layernorm"))
    wide = F.silu(narrow @ of("mlp.gate_proj").T) * (narrow @ of("mlp.up_proj").T)
    return out + wide @ of("mlp.down_proj").T


def write_mtp(folder: Path, name: str, *, likely: bool = True, training_steps: int = 0, **changed: Any) -> Judge:
    """A checkpoint of `family_checkpoints` with a layer that drafts behind its own; the rest as above.

    Of a layer that learns experts stay as they are.
    """
    family_checkpoints.write(folder, name, **changed)
    calmed(folder)
    document = json.loads((folder / "config.json").read_text())
    first, hidden, eps = document["num_hidden_layers"], document["hidden_size"], document["rms_norm_eps"]
    alone: dict[str, Any] = {"num_hidden_layers": 1, "first_k_dense_replace": 0}
    alone |= {"mlp_layer_types": ["sparse"]} if "mlp_layer_types" in document else {}
    family_checkpoints.write(folder / "layer", name, **changed | alone)
    calmed(folder / "layer")
    weights, layer = (load_file(one / "model.safetensors") for one in (folder, folder / "layer"))
    prefix = f"model.layers.{first}."
    generator = torch.Generator().manual_seed(3)

    def normal(*size: int, mean: float = 0.0, std: float = 0.02) -> Tensor:
        return torch.randn(*size, generator=generator) * std + mean

    weights = {key: weight for key, weight in weights.items() if not key.startswith(prefix)}
    layer = {key: weight for key, weight in layer.items() if not key.startswith("model.layers.1.")}
    if likely:  # the token decides, as it does in the model
        fuse = normal(hidden, 2 * hidden, std=0.001) + 0.1 * torch.eye(hidden, 2 * hidden)
        layer["model.norm.weight"] = weights["model.norm.weight"].clone()
    else:
        fuse = normal(hidden, 2 * hidden, std=0.1)
    enorm, hnorm = normal(hidden, mean=1.0), normal(hidden, mean=1.0)
    layer |= {key: weights[key] for key in ("model.embed_tokens.weight", "lm_head.weight")}
    judge, one = _judge(folder, first, weights), _judge(folder / "layer", 1, layer)

    @torch.no_grad()
    def features(tokens: Tensor) -> Tensor:
        states: Tensor = judge.model(tokens[None], use_cache=False).last_hidden_state[0]
        return states

    def forward(tokens: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        embedded = weights["model.embed_tokens.weight"][tokens]
        read = torch.cat((normed(embedded, enorm, eps), normed(states, hnorm, eps)), dim=1) @ fuse.T
        kept = list[Tensor]()
        hook = one.model.norm.register_forward_pre_hook(lambda _, given: kept.append(given[0]))
        logits: Tensor = one(inputs_embeds=read[None], use_cache=False).logits[0]
        hook.remove()
        return logits, kept[0][0]

    head = Judge(features=features, forward=forward)
    if training_steps:
        own = {
            key: weight
            for key, weight in one.named_parameters()
            if key in layer and key.startswith(("model.layers.0.", "model.norm."))
        }
        _train(head, [fuse, enorm, hnorm, *own.values()], judge, torch.arange(document["vocab_size"]), training_steps)
        layer |= {key: weight.detach().clone() for key, weight in own.items()}
    made = _as_mtp(layer) | {"enorm.weight": enorm, "hnorm.weight": hnorm, "eh_proj.weight": fuse}
    weights |= {prefix + key: weight for key, weight in made.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return head


def _as_mtp(layer: dict[str, Tensor]) -> dict[str, Tensor]:
    """The only layer of a model, with its embedding, norm and head, under the names of a layer that drafts."""
    own = "model.layers.0."
    found = {key.removeprefix(own): weight for key, weight in layer.items() if key.startswith(own)}
    return found | {
        "embed_tokens.weight": layer["model.embed_tokens.weight"].clone(),
        "shared_head.norm.weight": layer["model.norm.weight"],
        "shared_head.head.weight": layer["lm_head.weight"].clone(),
    }


def write_next(folder: Path, shape: Shape) -> Judge:
    """A checkpoint of Qwen3-Next with a tokenizer, and with its layer that drafts, whose drafts are often right."""
    checkpoints.write(folder, shape)
    one = replace(shape, num_layers=1, seed=shape.seed + 1, extra=shape.extra | {"layer_types": ["full_attention"]})
    checkpoints.write(folder / "layer", one)
    return _with_mtp(folder)


def write_qwen3_5(folder: Path) -> Judge:
    """The same of Qwen3.5 with experts, those of a matrix in one tensor."""
    family_checkpoints.write(folder, "qwen3.5-moe")
    family_checkpoints.write(folder / "layer", "qwen3.5-moe", num_hidden_layers=1, layer_types=["full_attention"])
    checkpoints.write_tokenizer(folder)
    return _with_mtp(folder)


def _with_mtp(folder: Path) -> Judge:
    """A checkpoint with a layer that drafts, which is one more of the folder in it."""
    for each in (folder, folder / "layer"):
        calmed(each)
    weights, layer = (load_file(each / "model.safetensors") for each in (folder, folder / "layer"))
    hidden, generator = weights["model.norm.weight"].shape[0], torch.Generator().manual_seed(3)

    def normal(*size: int, std: float = 0.02) -> Tensor:
        return torch.randn(*size, generator=generator) * std

    fuse = torch.cat((torch.eye(hidden) * 0.1, torch.zeros(hidden, hidden)), dim=1)
    fuse = fuse + normal(hidden, 2 * hidden, std=0.001)
    layer["model.norm.weight"] = weights["model.norm.weight"].clone()
    layer |= {name: weights[name] for name in ("model.embed_tokens.weight", "lm_head.weight")}
    own = {
        name.replace("model.", "mtp."): weight.clone()
        for name, weight in layer.items()
        if name.startswith(("model.layers.0.", "model.norm."))
    }
    enorm, hnorm = normal(hidden), normal(hidden)
    own |= {"mtp.fc.weight": fuse, "mtp.pre_fc_norm_embedding.weight": enorm, "mtp.pre_fc_norm_hidden.weight": hnorm}
    checkpoints.write_weights(folder, weights | own)
    checkpoints.write_weights(folder / "layer", layer)
    judge, drafting = (
        AutoModelForCausalLM.from_pretrained(each, dtype=torch.float32, attn_implementation="eager")
        for each in (folder, folder / "layer")
    )

    def features(tokens: Tensor) -> Tensor:
        states: Tensor = judge.model(tokens[None], use_cache=False).last_hidden_state[0]
        return states

    def forward(tokens: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        embedded = weights["model.embed_tokens.weight"][tokens]
        read = torch.cat((normed(embedded, 1 + enorm), normed(states, 1 + hnorm)), dim=1) @ fuse.T
        given = drafting.model(inputs_embeds=read[None], use_cache=False).last_hidden_state[0]
        return drafting.lm_head(given), given

    return Judge(features=features, forward=forward)


def _judge(folder: Path, num_layers: int, weights: dict[str, Tensor]) -> Any:
    document = json.loads((folder / "config.json").read_text())
    config = AutoConfig.for_model(**document)
    config._attn_implementation = "eager"
    judge: nn.Module = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    own = {key: one for key, one in weights.items() if not key.startswith(f"model.layers.{num_layers}.")}
    held = family_checkpoints.tensors_of(judge)
    with torch.no_grad():
        for key, weight in family_checkpoints.experts_together(own):
            held[key].copy_(weight)
    return judge


def normed(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
    """Of the root mean square."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def _turned(heads: Tensor) -> Tensor:
    """heads: (heads, tokens, HEAD_DIM), dimension i turned with i + HEAD_DIM / 2."""
    angles = torch.outer(torch.arange(heads.shape[1]), THETA ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM))
    cos, sin = angles.cos(), angles.sin()
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
