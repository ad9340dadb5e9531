"""Names of tensors in GGUF files and what a Hugging Face checkpoint calls the same ones. Used by `weights`. Pure."""

import re
from typing import Final

IGNORED: Final = frozenset({"rope_freqs.weight"})
"""Read with the config."""
_WHOLE: Final = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER: Final = re.compile(r"blk\.(\d{1,4})\.(\w+)\.(weight|bias)")
_TURNED: Final = re.compile(r"blk\.\d{1,4}\.attn_[qk]\.(weight|bias)")


def checkpoint_name(name: str) -> str | None:
    """Name in a Hugging Face checkpoint, None for a tensor that those do not have."""
    if name in _WHOLE:
        return _WHOLE[name]
    match = _LAYER.fullmatch(name)
    if match is None or match[2] not in _IN_LAYER:
        return None
    return f"model.layers.{int(match[1])}.{_IN_LAYER[match[2]]}.{match[3]}"


def is_interleaved(name: str, arch: str) -> bool:
    """Whether rows of a tensor lie in pairs that rotate together, as llama.cpp has them for its architecture llama."""
    return arch == "llama" and _TURNED.fullmatch(name) is not None
