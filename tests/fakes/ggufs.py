"""Writes GGUF files from the tiny checkpoints of `checkpoints`, by the `gguf` package: a second implementation.

Tensors are stored in any type: those that the package cannot quantize to are filled with random blocks, whose values
the package's own dequantization then tells. `reference` gives every tensor as that package reads it.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

Kind = gguf.GGMLQuantizationType
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
OF_EXPERTS = {
    "gate": "ffn_gate_inp",
    "shared_expert_gate": "ffn_gate_inp_shexp",
    "shared_expert.gate_proj": "ffn_gate_shexp",
    "shared_expert.up_proj": "ffn_up_shexp",
    "shared_expert.down_proj": "ffn_down_shexp",
}
EXPERTS = {
    "gate_proj": "ffn_gate_exps",
    "up_proj": "ffn_up_exps",
    "down_proj": "ffn_down_exps",
    "w1": "ffn_gate_exps",
    "w3": "ffn_up_exps",
    "w2": "ffn_down_exps",
}
BLOCKS = {
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}
"""Types whose blocks are filled at random, and where their scales are."""
EXPERT = re.compile(r"model\.layers\.(\d+)\.(\w+)\.experts\.(\d+)\.(\w+)\.weight")
ARCHITECTURES = {"mistral": "llama", "mixtral": "llama", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe"}
WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def write(
    source: Path,
    path: Path,
    *,
    kind: str = "F32",
    kinds: Mapping[str, str] | None = None,
    extra_tensors: Mapping[str, NDArray[np.float32]] | None = None,
    **keys: Any,
) -> Path:
    """One file from a checkpoint's directory. kinds: the type of single tensors by a part of their name in the file.

    keys: metadata to put in or over what is there; None leaves a key out. Dots are written as two underscores.
    """
    config = json.loads((source / "config.json").read_text())
    arch = ARCHITECTURES.get(config["model_type"], config["model_type"])
    metadata = _sizes(config, arch) | _tokenizer(source, config) | {k.replace("__", "."): v for k, v in keys.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, arch)
    for key, value in metadata.items():
        if value is not None:
            _add(writer, key, value)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    for ours, tensor in together(load_file(source / "model.safetensors")).items():
        rows = tensor.to(torch.float32).numpy()
        if arch == "llama" and (".attn_q." in ours or ".attn_k." in ours):
            rows = interleaved(rows, heads if ".attn_q." in ours else kv_heads)
        wanted = next((value for part, value in (kinds or {}).items() if part in ours), kind)
        _add_tensor(writer, ours, rows, Kind.F32 if rows.ndim == 1 else kind_of(wanted))
    for name, rows in (extra_tensors or {}).items():
        writer.add_tensor(name, rows)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def split(path: Path, count: int, *, stem: str = "") -> list[Path]:
    """The same model in several files, as gguf-split writes them: metadata in the first, tensors dealt out in order.

    stem: of their names; that of the file without one. The file itself is removed.
    """
    reader = gguf.GGUFReader(path)
    arch = reader.fields["general.architecture"].contents()
    each = -(-len(reader.tensors) // count)
    written = []
    for number in range(count):
        part = path.with_name(f"{stem or path.stem}-{number + 1:05d}-of-{count:05d}.gguf")
        writer = gguf.GGUFWriter(part, arch)
        if number == 0:
            for key, field in reader.fields.items():
                if not key.startswith("GGUF.") and key != "general.architecture":
                    kinds = list(field.types)
                    writer.add_key_value(key, field.contents(), kinds[0], kinds[-1] if len(kinds) > 1 else None)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for tensor in reader.tensors[number * each : (number + 1) * each]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        written.append(part)
    path.unlink()
    return written


def write_vocabulary(source: Path, path: Path) -> Path:
    """A file with the tokenizer of a checkpoint and without a tensor, as llama.cpp keeps for tests of tokenizers."""
    config = json.loads((source / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in (_sizes(config, "llama") | _tokenizer(source, config)).items():
        _add(writer, key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def reference(path: Path) -> dict[str, torch.Tensor]:
    """Every tensor by its name in a checkpoint, in float32, as the package reads it."""
    reader = gguf.GGUFReader(path)
    keys = {key: reader.fields[key].contents() for key in reader.fields}
    arch = keys["general.architecture"]
    found: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        rows = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        rows = rows.reshape(tuple(reversed([int(size) for size in tensor.shape])))
        if arch == "llama" and (".attn_q." in tensor.name or ".attn_k." in tensor.name):
            count = keys[f"{arch}.attention.head_count" + ("" if ".attn_q." in tensor.name else "_kv")]
            rows = rows.reshape(count, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)
        found |= apart(tensor.name, torch.from_numpy(rows.copy()), mixtral=arch == "llama")
    return found


def together(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A checkpoint's tensors under their names in a file, where all experts' matrices are one tensor."""
    found, experts = dict[str, torch.Tensor](), dict[str, dict[int, torch.Tensor]]()
    for name, tensor in weights.items():
        if match := EXPERT.fullmatch(name):
            experts.setdefault(f"blk.{match[1]}.{EXPERTS[match[4]]}.weight", {})[int(match[3])] = tensor
        else:
            found[theirs(name)] = tensor[0] if name.endswith("shared_expert_gate.weight") else tensor
    return found | {name: torch.stack([each[i] for i in range(len(each))]) for name, each in experts.items()}


def apart(name: str, tensor: torch.Tensor, *, mixtral: bool) -> dict[str, torch.Tensor]:
    """The other way round."""
    block = "block_sparse_moe" if mixtral else "mlp"
    names = {value: key for key, value in EXPERTS.items() if key.startswith("w") == mixtral}
    parts = name.split(".")
    if len(parts) == 4 and parts[2] in names:
        prefix = f"model.layers.{parts[1]}.{block}.experts."
        return {f"{prefix}{expert}.{names[parts[2]]}.weight": rows for expert, rows in enumerate(tensor)}
    if len(parts) == 4 and parts[2] in OF_EXPERTS.values():
        base = next(key for key, value in OF_EXPERTS.items() if value == parts[2])
        rows = tensor[None] if base == "shared_expert_gate" else tensor
        return {f"model.layers.{parts[1]}.{block}.{base}.{parts[3]}": rows}
    return {_ours(name): tensor}


def theirs(name: str) -> str:
    """The name in a GGUF file of a checkpoint's tensor."""
    if name in WHOLE:
        return WHOLE[name]
    _, _, layer, rest = name.split(".", 3)
    base, suffix = rest.rsplit(".", 1)
    inner = base.removeprefix("mlp.").removeprefix("block_sparse_moe.")
    return f"blk.{layer}.{NAMES.get(base) or OF_EXPERTS[inner]}.{suffix}"


def _ours(name: str) -> str:
    for ours, other in WHOLE.items():
        if name == other:
            return ours
    _, layer, base, suffix = name.split(".")
    return f"model.layers.{layer}.{next(k for k, v in NAMES.items() if v == base)}.{suffix}"


def interleaved(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows of heads as llama.cpp keeps them: the two that rotate together beside each other."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def kind_of(name: str) -> Any:
    """The package's own name for a type of tensor."""
    return Kind.__members__[name]


def random_blocks(kind: Any, rows: int, columns: int, seed: int = 0) -> NDArray[np.uint8]:
    """Valid blocks with random contents and scales of a usual size: (rows, bytes)."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    generator = np.random.default_rng(seed)
    blocks = generator.integers(0, 256, (rows * columns // block, size), dtype=np.uint8)
    for at in BLOCKS.get(kind.name, (0,)):
        small = generator.uniform(2e-5, 2e-4, (len(blocks), 1)).astype(np.float16)
        blocks[:, at : at + 2] = small.view(np.uint8)
    return blocks.reshape(rows, -1)


def _add_tensor(writer: Any, name: str, rows: NDArray[np.float32], kind: Any) -> None:
    if kind == Kind.F32:
        writer.add_tensor(name, rows)
    elif kind == Kind.F16:
        writer.add_tensor(name, rows.astype(np.float16))
    elif kind.name in BLOCKS:
        blocks = random_blocks(kind, rows.size // rows.shape[-1], rows.shape[-1], seed=len(name))
        writer.add_tensor(name, blocks.reshape(*rows.shape[:-1], -1), raw_dtype=kind)
    else:
        writer.add_tensor(name, gguf.quants.quantize(rows, kind), raw_dtype=kind)


def _add(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _sizes(config: dict[str, Any], arch: str) -> dict[str, Any]:
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    experts = config.get("num_experts") or config.get("num_local_experts")
    mixture = {f"{arch}.expert_count": experts, f"{arch}.expert_used_count": config.get("num_experts_per_tok")}
    return (mixture if experts else {}) | {
        f"{arch}.context_length": config["max_position_embeddings"],
        f"{arch}.embedding_length": config["hidden_size"],
        f"{arch}.block_count": config["num_hidden_layers"],
        f"{arch}.feed_forward_length": config["intermediate_size"],
        f"{arch}.attention.head_count": config["num_attention_heads"],
        f"{arch}.attention.head_count_kv": config["num_key_value_heads"],
        f"{arch}.attention.key_length": width,
        f"{arch}.attention.value_length": width,
        f"{arch}.rope.freq_base": float(config.get("rope_theta") or config.get("rope_parameters", {})["rope_theta"]),
        f"{arch}.rope.dimension_count": width,
        f"{arch}.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
    }


def _tokenizer(source: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Byte-level BPE as checkpoints.write_tokenizer makes it; ids without a piece are padded, as converters do."""
    document = json.loads((source / "tokenizer.json").read_text())
    special = {token["id"]: token["content"] for token in document["added_tokens"]}
    pieces = {index: piece for piece, index in document["model"]["vocab"].items()} | special
    tokens = [pieces.get(index, f"[PAD{index}]") for index in range(config["vocab_size"])]
    kinds = [3 if i in special else 1 if i in pieces else 5 for i in range(config["vocab_size"])]
    settings = json.loads((source / "tokenizer_config.json").read_text())
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": [" ".join(merge) for merge in document["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": config["bos_token_id"],
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
        "tokenizer.ggml.padding_token_id": config["eos_token_id"],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": settings["chat_template"],
    }
