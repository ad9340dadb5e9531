"""What a small engine reports of itself."""

from typing import Any

import msgspec

from kvasir_runtime.wire import EngineFacts

SMALL = EngineFacts(
    device="cpu",
    kernels="fake",
    dtype="float32",
    block_size=4,
    num_blocks=10,
    max_batch_tokens=512,
    max_model_len=64,
    max_sequences=4,
    weights_bytes=1,
    kv_bytes_per_token=1,
)


def engine_facts(**changes: Any) -> EngineFacts:
    """40 tokens in blocks of 4, unless told otherwise."""
    return msgspec.structs.replace(SMALL, **changes)
