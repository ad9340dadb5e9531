"""Names of tensors in GGUF files and what a Hugging Face checkpoint calls the same ones. Used by `weights`. Pure."""

import re
from typing import Final

IGNORED: Final = frozenset({"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"})
"""Read with the config."""
_WHOLE: Final = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output_norm.bias": "model.norm.bias",
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
_GEMMA: Final = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_MERGED_GATE: Final = {"ffn_up": "mlp.gate_up_proj"}
_OF_ARCH: Final[dict[str, dict[str, str]]] = {
    "gemma2": _GEMMA,
    "gemma3": _GEMMA,
    "phi3": {"attn_qkv": "self_attn.qkv_proj"} | _MERGED_GATE,
    "glm4": {"post_attention_norm": "post_self_attn_layernorm", "post_ffw_norm": "post_mlp_layernorm"} | _MERGED_GATE,
    "olmo2": {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"},
    "starcoder2": {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
}
"""In a layer, where an architecture's checkpoints have names of their own."""
_OF_EXPERTS: Final = {
    "ffn_gate_inp": "gate",
    "ffn_gate_shexp": "shared_expert.gate_proj",
    "ffn_up_shexp": "shared_expert.up_proj",
    "ffn_down_shexp": "shared_expert.down_proj",
    "ffn_gate_inp_shexp": "shared_expert_gate",
}
_EXPERTS: Final = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
# Of Mixtral, which is llama.cpp's llama with experts.
_MIXTRAL: Final = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
_LAYER: Final = re.compile(r"blk\.(\d{1,4})\.(\w+)\.(weight|bias)")
_TURNS: Final = ("llama", "granite", "internlm2")
_TURNED: Final = re.compile(r"blk\.\d{1,4}\.attn_[qk]\.(weight|bias)")


def checkpoint_names(name: str, arch: str, experts: int = 0) -> tuple[str, ...]:
    """Names in a Hugging Face checkpoint of what a tensor holds: none for one that those do not have.

    experts: how many the first dimension of a tensor with all experts' matrices counts; one name each.
    """
    if name in _WHOLE:
        return (_WHOLE[name],)
    match = _LAYER.fullmatch(name)
    if match is None:
        return ()
    layer, base, suffix = f"model.layers.{int(match[1])}.", match[2], match[3]
    named = _OF_ARCH.get(arch, {}).get(base) or _IN_LAYER.get(base)
    if named is not None:
        return (f"{layer}{named}.{suffix}",)
    block = layer + ("block_sparse_moe." if arch == "llama" else "mlp.")
    if base in _OF_EXPERTS:
        return (f"{block}{_OF_EXPERTS[base]}.{suffix}",)
    if base not in _EXPERTS:
        return ()
    matrix = _MIXTRAL[_EXPERTS[base]] if arch == "llama" else _EXPERTS[base]
    return tuple(f"{block}experts.{expert}.{matrix}.{suffix}" for expert in range(experts))


def holds_experts(name: str) -> bool:
    """Whether a tensor holds a matrix of every expert, one behind the other."""
    match = _LAYER.fullmatch(name)
    return match is not None and match[2] in _EXPERTS


def is_interleaved(name: str, arch: str) -> bool:
    """Whether rows of a tensor lie in pairs that rotate together, and in a checkpoint do not: as llama.cpp has them for
    its architecture llama and those that are like it.
    """
    return arch in _TURNS and _TURNED.fullmatch(name) is not None


def norms_are_whole(name: str, arch: str) -> bool:
    """Whether a tensor is a norm that a checkpoint stores less 1."""
    return arch in ("gemma2", "gemma3") and name.endswith("norm.weight")
