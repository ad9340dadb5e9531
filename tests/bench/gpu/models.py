"""Checkpoints of random weights, made where the weights will be used and written to memory that looks like a disk.

Eight billion numbers are drawn on the card in two seconds and on a processor in two minutes. Rows of the output layer
whose tokens are no printable text are zero, so that each token of an answer is streamed at once.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save_file
from torch import Tensor

from bench.shapes import drawable, tokenizer_of
from fakes import checkpoints
from fakes.checkpoints import Shape

MEMORY: Final = Path("/dev/shm")
SPARE: Final = 2 << 30
_DONE: Final = "complete"


@contextmanager
def room(needed_bytes: int) -> Iterator[Path]:
    """A folder of our own that holds so much: in memory, or where temporary files are; gone afterwards."""
    where = MEMORY if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > needed_bytes + SPARE else None
    with tempfile.TemporaryDirectory(prefix="kvasir-bench-", dir=where) as folder:
        yield Path(folder)


def num_bytes(shape: Shape) -> int:
    """Of a checkpoint's weights."""
    queries, kv = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    layer = shape.hidden_size * (2 * queries + 2 * kv + 3 * shape.intermediate_size + 2)
    tables = shape.vocab_size * shape.hidden_size * (1 if shape.tied else 2)
    return (shape.num_layers * layer + tables + shape.hidden_size) * shape.dtype.itemsize


def provided(folder: Path, shape: Shape, device: torch.device) -> Path:
    """The checkpoint in a folder, made by the first who asks."""
    if (folder / _DONE).exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizer_of(shape)
    files = _files(shape, drawable(tokenizer, shape), device)
    weight_map: dict[str, str] = {}
    for name, weights in files:
        save_file({key: tensor.cpu() for key, tensor in weights.items()}, folder / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(weights, name)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": num_bytes(shape)}, "weight_map": weight_map})
    )
    (folder / "config.json").write_text(json.dumps(checkpoints.config_json(shape)))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": checkpoints.EOS_TOKEN_ID}))
    checkpoints.write_tokenizer(folder, 320, shape.max_position_embeddings)  # the chat template beside it
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / _DONE).touch()
    return folder


def _files(shape: Shape, printable: Tensor, device: torch.device) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """A file for each layer and one for the rest, so that no more than one is held beside what is written."""
    generator = torch.Generator(device=device).manual_seed(shape.seed)

    def normal(rows: int, columns: int) -> Tensor:
        weight = torch.empty(rows, columns, dtype=shape.dtype, device=device)
        return weight.normal_(0.0, shape.std, generator=generator)

    hidden, queries, kv = shape.hidden_size, shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    for layer in range(shape.num_layers):
        prefix = f"model.layers.{layer}."
        weights = {
            "self_attn.q_proj": normal(queries, hidden),
            "self_attn.k_proj": normal(kv, hidden),
            "self_attn.v_proj": normal(kv, hidden),
            "self_attn.o_proj": normal(hidden, queries),
            "mlp.gate_proj": normal(shape.intermediate_size, hidden),
            "mlp.up_proj": normal(shape.intermediate_size, hidden),
            "mlp.down_proj": normal(hidden, shape.intermediate_size),
            "input_layernorm": torch.ones(hidden, dtype=shape.dtype),
            "post_attention_layernorm": torch.ones(hidden, dtype=shape.dtype),
        }
        yield f"model-{layer:05d}.safetensors", {f"{prefix}{name}.weight": t for name, t in weights.items()}
    head = normal(shape.vocab_size, hidden)
    head[~printable.to(device)] = 0
    yield (
        "model-rest.safetensors",
        {
            "model.embed_tokens.weight": normal(shape.vocab_size, hidden),
            "model.norm.weight": torch.ones(hidden, dtype=shape.dtype),
            "lm_head.weight": head,
        },
    )
