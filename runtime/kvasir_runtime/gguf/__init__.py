"""llama.cpp's file format: the metadata of a file, without its weights. Imports no torch."""

from kvasir_runtime.gguf.hf_config import config, end_tokens, vocab_size
from kvasir_runtime.gguf.reader import SUFFIX, GgufFile, has_header, is_gguf
from kvasir_runtime.gguf.split_files import model_name, parts, read
from kvasir_runtime.gguf.stored_size import config_with_bits
from kvasir_runtime.gguf.tensor_names import IGNORED, checkpoint_names, holds_experts, is_interleaved, norms_are_whole

__all__ = [
    "IGNORED",
    "SUFFIX",
    "GgufFile",
    "checkpoint_names",
    "config",
    "config_with_bits",
    "end_tokens",
    "has_header",
    "holds_experts",
    "is_gguf",
    "is_interleaved",
    "model_name",
    "norms_are_whole",
    "parts",
    "read",
    "vocab_size",
]
