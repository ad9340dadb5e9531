"""Tensors of XLM-RoBERTa as Jina publishes them: the names of flash attention, and adapters beside the weights.

It must not import our packages.
"""

import torch
from torch import Tensor

CODE = {"AutoConfig": "jinaai/xlm-roberta-flash-implementation--configuration_xlm_roberta.XLMRobertaFlashConfig"}
NAMES = {
    "embeddings.LayerNorm": "emb_ln",
    "encoder.layer.": "encoder.layers.",
    "attention.output.dense": "mixer.out_proj",
    "attention.output.LayerNorm": "norm1",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
    "output.LayerNorm": "norm2",
}
"""What XLM-RoBERTa has beside queries, keys and values, in the order in which it is replaced."""
TASKS, RANK = 5, 4


def renamed(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Those of transformers' XLM-RoBERTa under these names, queries, keys and values in one."""
    found, query = dict[str, Tensor](), "attention.self.query"
    for key, weight in weights.items():
        parts = [weights[key.replace(query, f"attention.self.{part}")] for part in ("query", "key", "value")]
        name, weight = (key.replace(query, "mixer.Wqkv"), torch.cat(parts)) if query in key else (key, weight)
        for theirs, ours in NAMES.items():
            name = name.replace(theirs, ours) if not name.startswith("classifier") else name
        if "attention.self" not in name:
            found[name] = weight
    return found


def with_adapters(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of products and tables as torch names those that something is added to, with what is added."""
    found = dict[str, Tensor]()
    for name, weight in weights.items():
        stem = name.removesuffix(".weight")
        if stem == name or weight.dim() != 2:
            found[name] = weight
            continue
        found[f"{stem}.parametrizations.weight.original"] = weight
        found[f"{stem}.parametrizations.weight.0.lora_A"] = torch.randn(TASKS, RANK, weight.shape[1])
        found[f"{stem}.parametrizations.weight.0.lora_B"] = torch.randn(TASKS, weight.shape[0], RANK)
    return found
