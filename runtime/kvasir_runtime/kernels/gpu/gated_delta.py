"""The gated delta rule, and Mamba-2's, for CUDA: sequences of a few tokens step by step, longer ones in chunks.

One launch convolves queries, keys and values of all tokens and advances the inputs that the convolution keeps; then a
program holds some columns of one head's state from the beginning of a sequence's tokens to their end. Within a chunk
the changes u of the state solve (1 + L) u = w, where L is lower triangular and follows from keys, decays and betas
alone: the inverses of 1 + L are computed for all chunks at once, and so are the scores of queries with keys, so that
only products with the state are left to do one after the other. Changes of the state take it as two numbers of 16 bits,
whose sum is off by 2^-17; outputs take it rounded once to the query's type. What queries and keys are behind their
norms is rounded to x's type.
Grids follow from the numbers of tokens and sequences; lengths are read on the device.
Sources: Yang et al. 2024, arXiv 2412.06464 (gated delta networks) and arXiv 2406.06484 (chunks, WY representation).
"""

import torch
import triton
from torch import Tensor

from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.kernels.gated_delta import StateHeads
from kvasir_runtime.kernels.gpu import gated_delta_kernels
from kvasir_runtime.kernels.gpu.options import options

# Tokens of a sequence that go one by one, which reads no more than a chunk would; of a program that convolves.
_MOST_STEPS, _CONVOLVED = 8, 16
# Columns of a state in one program. With a key of 128 numbers steps hold 32 numbers in each thread of four warps;
# chunks hold the 16 bits of a state in every warp, and more of them do not fit.
_STEP_COLUMNS, _CHUNK_COLUMNS = 32, 16
# Tokens of a chunk and warps of a program by bytes of a number. Products of float32 are sums in registers.
_CHUNKS = {2: (64, 4), 4: (16, 8)}


def launch(
    x: Tensor,
    conv: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    states: Tensor,
    attn_metadata: AttentionMetadata,
    block_size: int,
    heads: StateHeads,
    bias: Tensor | None = None,
    skip: Tensor | None = None,
) -> Tensor:
    """kernels.gated_delta."""
    given = x, conv, log_decay, beta, states, attn_metadata, block_size, heads
    return advance(*given, *_CHUNKS[x.element_size()], bias=bias, skip=skip)


def advance(
    x: Tensor,
    conv: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    states: Tensor,
    attn_metadata: AttentionMetadata,
    block_size: int,
    heads: StateHeads,
    chunk: int,
    num_warps: int,
    most_steps: int = _MOST_STEPS,
    bias: Tensor | None = None,
    skip: Tensor | None = None,
) -> Tensor:
    """kernels.gated_delta with chunks of so many tokens, a power of two, and sequences of up to most_steps without."""
    (tokens, channels), sequences, longest = x.shape, attn_metadata.num_sequences, attn_metadata.longest_query
    value_dim = (channels - 2 * heads.key_heads * heads.key_dim) // heads.value_heads
    starts, lens = attn_metadata.lengths()
    tables = attn_metadata.block_tables
    places = (states, tables, starts, lens, block_size, states.stride(0), tables.stride(0))
    sizes = {
        "KEY_HEADS": heads.key_heads,
        "VALUE_HEADS": heads.value_heads,
        "KEY_DIM": heads.key_dim,
        "VALUE_DIM": value_dim,
        "DELTA": heads.delta,
    }
    width = {"WIDTH": conv.shape[2]}
    mixed = torch.empty((tokens, channels), dtype=x.dtype, device=x.device)
    each = 1 if longest == 1 else _CONVOLVED
    one_block, padded = longest <= each, _padded(max(heads.key_dim, value_dim))
    blocks = sequences if one_block else tokens // each + sequences
    gated_delta_kernels.convolve[(blocks, 2 * heads.key_heads + heads.value_heads)](
        x, conv, bias, mixed, *places, sequences, x.stride(0), heads.key_dim**-0.5,
        BIASED=bias is not None, PADDED=padded, TOKENS=each, HELD=triton.next_power_of_2(conv.shape[2]),
        ONE_BLOCK=one_block, **sizes, **width,
        **options(each * padded),
    )  # fmt: skip
    out = x.new_empty((tokens, heads.value_heads, value_dim))
    sizes |= {"PADDED": _padded(heads.key_dim), "MOST_STEPS": most_steps}
    columns = min(_STEP_COLUMNS, _padded(value_dim))
    gated_delta_kernels.step[(-(-value_dim // columns), heads.value_heads, sequences)](
        mixed, log_decay, beta, skip, out, *places, SKIPS=skip is not None, COLUMNS=columns, **sizes, **width,
        **options(2048),
    )  # fmt: skip
    if longest > most_steps:
        parts = tokens, heads.value_heads, chunk
        inverses = torch.empty(parts, dtype=torch.float32, device=x.device)
        scores = torch.empty(parts, dtype=x.dtype, device=x.device)
        gated_delta_kernels.prepare[(tokens // chunk + sequences, heads.value_heads)](
            mixed, log_decay, beta, inverses, scores, starts, sequences, CHUNK=chunk, **sizes, **options(4096)
        )
        gated_delta_kernels.advance[(-(-value_dim // _CHUNK_COLUMNS), heads.value_heads, sequences)](
            mixed, log_decay, beta, skip, inverses, scores, out, *places, SKIPS=skip is not None, CHUNK=chunk,
            COLUMNS=_CHUNK_COLUMNS, **sizes, **width,
            PRECISION="ieee" if x.dtype == torch.float32 else "tf32x3",
            num_warps=num_warps, num_stages=1, enable_fp_fusion=True,
        )  # fmt: skip
    return out


def _padded(size: int) -> int:
    """A power of two that products take."""
    return max(16, 1 << (size - 1).bit_length())
