"""A GGUF file's metadata as the config.json that the same model has elsewhere, so that all else reads one language.

Called by `models.config`, by the tokenizer of the API process and by commands. It knows the keys of llama.cpp's
converter and nothing of tensors' contents, apart from the short list of rotary factors.
"""

from collections.abc import Iterator
from typing import Any, Final

from kvasir_runtime.errors import ModelError
from kvasir_runtime.gguf import family_fields
from kvasir_runtime.gguf.reader import GgufFile

ARCHITECTURES: Final = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen2moe": ("Qwen2MoeForCausalLM", "qwen2_moe"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
    "qwen3moe": ("Qwen3MoeForCausalLM", "qwen3_moe"),
    "gemma2": ("Gemma2ForCausalLM", "gemma2"),
    "gemma3": ("Gemma3ForCausalLM", "gemma3_text"),
    "phi3": ("Phi3ForCausalLM", "phi3"),
    "granite": ("GraniteForCausalLM", "granite"),
    "glm4": ("Glm4ForCausalLM", "glm4"),
    "internlm2": ("LlamaForCausalLM", "llama"),  # whose matrices the converter takes apart
    "olmo2": ("Olmo2ForCausalLM", "olmo2"),
    "command-r": ("CohereForCausalLM", "cohere"),
    "cohere2": ("Cohere2ForCausalLM", "cohere2"),
    "starcoder2": ("Starcoder2ForCausalLM", "starcoder2"),
}
"""Of each architecture the one that a config.json names, and its model_type."""
_BIASED: Final = ("llama", "glm4", "internlm2")
_MIXTRAL: Final = ("MixtralForCausalLM", "mixtral")
"""What llama is with experts."""
CONTROL: Final = 3
"""Type of tokens that are no text: the end of a turn and so on."""
# A file names one end of text; chats end with another, which is known by its spelling.
_ENDS: Final = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>")
_END_KEYS: Final = ("eos", "eot", "eom")
_DTYPES: Final = {"F32": "float32", "F16": "float16"}


def config(file: GgufFile) -> dict[str, Any]:
    """The keys of a Hugging Face config.json. Raises ModelError for an architecture or a property not served here."""
    arch = file.text("general.architecture")
    if not file.tensors:
        raise ModelError(f"{file.path} holds a vocabulary alone and no weights: it can be tokenized with, not served")
    if arch not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ModelError(f"{file.path}: architecture {arch or 'unnamed'} is not supported; supported are {known}")
    _refuse(file, arch)
    heads = file.integer(f"{arch}.attention.head_count")
    hidden = file.integer(f"{arch}.embedding_length")
    if heads < 1 or hidden < 1:
        raise ModelError(f"{file.path}: {heads} heads and an embedding of {hidden} are no sizes")
    experts = file.integer(f"{arch}.expert_count", 0)
    architecture, model_type = _MIXTRAL if arch == "llama" and experts else ARCHITECTURES[arch]
    document = {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": vocab_size(file),
        "hidden_size": hidden,
        "intermediate_size": file.integer(f"{arch}.feed_forward_length"),
        "num_hidden_layers": file.integer(f"{arch}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": file.integer(f"{arch}.attention.head_count_kv", heads),
        "head_dim": (width := _head_dim(file, arch, hidden // heads)),
        "max_position_embeddings": file.integer(f"{arch}.context_length"),
        "rms_norm_eps": _epsilon(file, arch),
        "rope_theta": file.number(f"{arch}.rope.freq_base", 10_000.0),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": arch in _BIASED and "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": arch == "llama" and "blk.0.ffn_up.bias" in file.tensors,
        "use_bias": "blk.0.attn_q.bias" in file.tensors,
        "torch_dtype": _dtype(file),
        "eos_token_id": list(end_tokens(file)),
    }
    if experts:
        document |= _experts(file, arch, experts)
    document |= family_fields.fields(file, arch, head_dim=width)
    scaling = _rope_scaling(file, arch)
    return document | ({"rope_scaling": scaling} if scaling else {})


def vocab_size(file: GgufFile) -> int:
    """Rows of the table of embeddings, without a look at any tensor. Raises ModelError."""
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelError(f"{file.path}: tensor token_embd.weight is missing or no table")
    return embedding.shape[0]


def end_tokens(file: GgufFile) -> Iterator[int]:
    """Ids after which an answer is over, each once: those that the file names, then control tokens by spelling."""
    tokens, types = file.texts("tokenizer.ggml.tokens"), file.numbers("tokenizer.ggml.token_type")
    ids = [file.integer(f"tokenizer.ggml.{name}_token_id", -1) for name in _END_KEYS]
    places = {token: index for index, token in enumerate(tokens) if token in _ENDS}
    ids += [
        places[end] for end in _ENDS if end in places and places[end] < len(types) and types[places[end]] == CONTROL
    ]
    yield from dict.fromkeys(token for token in ids if 0 <= token < len(tokens))


def _refuse(file: GgufFile, arch: str) -> None:
    """What would change the arithmetic and is not done here."""
    if file.integer(f"{arch}.expert_count", 0) and arch in ("qwen2", "qwen3"):
        raise ModelError(f"{file.path}: experts in a file of the architecture {arch}")
    if "blk.0.attn_qkv.weight" in file.tensors and arch != "phi3":
        raise ModelError(f"{file.path}: merged attention weights (attn_qkv) are not supported")


def _experts(file: GgufFile, arch: str, experts: int) -> dict[str, Any]:
    """What config.json says of experts. Which layers have some, and their sizes, is what the tensors are."""
    layers = file.integer(f"{arch}.block_count")
    sparse = [layer for layer in range(layers) if f"blk.{layer}.ffn_gate_exps.weight" in file.tensors]
    if not sparse:
        raise ModelError(f"{file.path}: tensor blk.0.ffn_gate_exps.weight is missing, as in files of before 2024-04")
    first = f"blk.{sparse[0]}.ffn_gate_"
    gates, shared = file.tensors[first + "exps.weight"].shape, file.tensors.get(first + "shexp.weight")
    if len(gates) != 3 or gates[0] != experts:
        raise ModelError(f"{file.path}: tensor {first}exps.weight has shape {list(gates)}, expected {experts} matrices")
    sizes = {"moe_intermediate_size": gates[1]}
    if arch == "llama":
        sizes = {"intermediate_size": sizes["moe_intermediate_size"]}
    return sizes | {
        "num_experts": experts,
        "num_experts_per_tok": file.integer(f"{arch}.expert_used_count"),
        "norm_topk_prob": file.flag(f"{arch}.expert_weights_norm", arch != "qwen2moe"),  # as llama.cpp computes
        "mlp_only_layers": sorted(set(range(layers)) - set(sparse)),
        "shared_expert_intermediate_size": shared.shape[0] if shared else 0,
    }


def _head_dim(file: GgufFile, arch: str, implied: int) -> int:
    width = file.integer(f"{arch}.attention.key_length", implied)
    turns_in_part = arch in family_fields.TURNED_IN_PART
    for key in ("attention.value_length", *(() if turns_in_part else ("rope.dimension_count",))):
        if (other := file.integer(f"{arch}.{key}", width)) != width:
            raise ModelError(f"{file.path}: {arch}.{key} {other} differs from the heads' width {width}")
    return width


def _epsilon(file: GgufFile, arch: str) -> float:
    """Of norms of either kind."""
    mean = file.number(f"{arch}.attention.layer_norm_epsilon", 1e-6)
    return file.number(f"{arch}.attention.layer_norm_rms_epsilon", mean)


def _dtype(file: GgufFile) -> str:
    """What to compute in: as stored where that is a plain type, else bfloat16."""
    sizes: dict[str, int] = {}
    for entry in file.tensors.values():
        if len(entry.shape) > 1:  # norms are F32 in every file
            sizes[entry.kind.name] = sizes.get(entry.kind.name, 0) + entry.num_bytes
    return _DTYPES.get(max(sizes, key=lambda name: sizes[name], default=""), "bfloat16")


def _rope_scaling(file: GgufFile, arch: str) -> dict[str, Any] | None:
    """As config.json writes it. Llama 3.1 and later store a factor for each pair of dimensions as a tensor."""
    factors = file.floats("rope_freqs.weight")
    if factors is not None:
        return {"rope_type": "factors", "factors": list(factors)}
    if (longrope := family_fields.longrope(file, arch)) is not None:
        return longrope
    kind = file.text(f"{arch}.rope.scaling.type", "none")
    if kind == "none":
        return None
    scaling = {"rope_type": kind, "factor": file.number(f"{arch}.rope.scaling.factor", 1.0)}
    if kind == "yarn":
        positions = file.integer(f"{arch}.context_length")
        scaling["original_max_position_embeddings"] = file.integer(
            f"{arch}.rope.scaling.original_context_length", positions
        )
    return scaling
