"""The C++ kernels as operations of the table `Ops`, beside torch's where they have none.

Called by `kernels.ops` once, with the library that was loaded. A tensor whose type or shape the C++ does not take goes
to torch's operation; the contracts are those of the operations' own files.
"""

import ctypes
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kvasir_runtime.kernels import act_and_mul, argmax, attention, embedding, logprobs, rms_norm, sample, split_qkv
from kvasir_runtime.kernels.act_and_mul import Activation
from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.kernels.cpu import structs
from kvasir_runtime.kernels.cpu.library import Function, Library
from kvasir_runtime.kernels.kv_quant import INT4
from kvasir_runtime.kernels.logprobs import WantedLogprobs
from kvasir_runtime.kernels.sample import Draws

TYPES: Final = (torch.float32, torch.bfloat16)
ACTIVATIONS: Final[dict[Activation, int]] = {"silu": 0, "gelu": 1}
MAX_HEAD_DIM: Final = 512


@dataclass(frozen=True, slots=True)
class CpuKernels:
    """One C++ function per operation, on this processor's variant. amx, invariant: of attention, as in `Library`."""

    _amx: bool
    _invariant: bool
    _attention: Function
    _norm: Function
    _split_qkv: Function
    _act_and_mul: Function
    _gather: Function
    _argmax: Function
    _sample: Function
    _logprobs: Function

    def attention(
        self,
        query: Tensor,
        cache: Tensor,
        attn_metadata: AttentionMetadata,
        scale: float,
        window: int,
        softcap: float = 0.0,
        sinks: Tensor | None = None,
        chunk: int = 0,
        value_dim: int = 0,
        slopes: Tensor | None = None,
    ) -> Tensor:
        """kernels.attention; scores that are sloped or have a sink are torch's."""
        changed = sinks is not None or slopes is not None
        if changed or not takes_heads(query.dtype, cache.dtype, query.shape[2]) or query.stride(1) != query.shape[2]:
            return attention.cpu(query, cache, attn_metadata, scale, window, softcap, sinks, chunk, value_dim, slopes)
        made, kept = structs.sequences(attn_metadata)
        tokens, heads, head_dim = query.shape
        out = query.new_empty((tokens, heads * head_dim))
        value_offset, block_bytes = structs.strides(cache)
        args = structs.AttentionArgs(
            query=query.data_ptr(),
            token_stride=query.stride(0),
            out=out.data_ptr(),
            cache=cache.data_ptr(),
            value_offset=value_offset,
            block_bytes=block_bytes,
            sequences=ctypes.pointer(made),
            heads=heads,
            kv_heads=cache.shape[3],
            head_dim=head_dim,
            block_size=cache.shape[2],
            window=window,
            chunk=chunk,
            scale=scale,
            cap=softcap,
            query_type=structs.TYPES[query.dtype],
            cache_type=structs.TYPES[cache.dtype],
            amx=self._amx,
            invariant=self._invariant,
        )
        self._attention(ctypes.byref(args))
        del kept
        return attention.first_of_heads(out, query, value_dim) if value_dim else out

    def rms_norm(self, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """kernels.rms_norm."""
        if x.dtype not in TYPES or not takes_norm(x.dtype, weight) or weight.dim() > 1 or not x.is_contiguous():
            return rms_norm.cpu(x, residual, weight, eps)
        out = torch.empty_like(x)
        residual = None if residual is None else residual.contiguous()
        args = structs.NormArgs(
            x=x.data_ptr(),
            residual=None if residual is None else residual.data_ptr(),
            weight=weight.data_ptr(),
            total=None if residual is None else x.data_ptr(),
            out=out.data_ptr(),
            rows=x.numel() // x.shape[-1],
            dim=x.shape[-1],
            eps=eps,
            type=structs.TYPES[x.dtype],
            weight_type=structs.TYPES[weight.dtype],
        )
        self._norm(ctypes.byref(args))
        return out, x

    def split_qkv(
        self, qkv: Tensor, norm: Tensor | None, eps: float, cos: Tensor, sin: Tensor, cache: Tensor, slots: Tensor
    ) -> Tensor:
        """kernels.split_qkv; queries are turned where they lie."""
        mixed = norm is not None and not takes_norm(qkv.dtype, norm)
        if mixed or not takes_heads(qkv.dtype, cache.dtype, qkv.shape[2]):
            return split_qkv.cpu(qkv, norm, eps, cos, sin, cache, slots)
        kv_heads = cache.shape[3]
        heads = qkv.shape[1] - 2 * kv_heads
        value_offset, block_bytes = structs.strides(cache)
        args = structs.SplitArgs(
            qkv=qkv.data_ptr(),
            norm=None if norm is None else norm.data_ptr(),
            cos=cos.data_ptr(),
            sin=sin.data_ptr(),
            positions=None,
            slots=slots.data_ptr(),
            cache=cache.data_ptr(),
            value_offset=value_offset,
            block_bytes=block_bytes,
            tokens=qkv.shape[0],
            heads=heads,
            kv_heads=kv_heads,
            head_dim=qkv.shape[2],
            block_size=cache.shape[2],
            eps=eps,
            type=structs.TYPES[qkv.dtype],
            cache_type=structs.TYPES[cache.dtype],
            norm_type=structs.TYPES[qkv.dtype if norm is None else norm.dtype],
        )
        self._split_qkv(ctypes.byref(args))
        return qkv[:, :heads]

    def act_and_mul(self, x: Tensor, activation: Activation) -> Tensor:
        """kernels.act_and_mul; the clamped one is torch's."""
        if x.dtype not in TYPES or activation not in ACTIVATIONS:
            return act_and_mul.cpu(x, activation)
        rows, dim = x.shape[0], x.shape[1] // 2
        out = x.new_empty((rows, dim))
        args = structs.ActAndMulArgs(
            x=x.data_ptr(),
            out=out.data_ptr(),
            rows=rows,
            dim=dim,
            type=structs.TYPES[x.dtype],
            activation=ACTIVATIONS[activation],
        )
        self._act_and_mul(ctypes.byref(args))
        return out

    def embedding(self, ids: Tensor, table: Tensor) -> Tensor:
        """kernels.embedding."""
        if not table.is_contiguous() or not ids.is_contiguous():
            return embedding.reference(ids, table)
        out = table.new_empty((ids.shape[0], table.shape[1]))
        args = structs.GatherArgs(
            table=table.data_ptr(),
            ids=ids.data_ptr(),
            out=out.data_ptr(),
            rows=ids.shape[0],
            row_bytes=table.shape[1] * table.element_size(),
        )
        self._gather(ctypes.byref(args))
        return out

    def argmax(self, logits: Tensor) -> Tensor:
        """kernels.argmax."""
        if logits.dtype not in TYPES:
            return argmax.reference(logits)
        ids = torch.empty(logits.shape[0], dtype=torch.int64)
        args = structs.ArgmaxArgs(
            x=logits.data_ptr(),
            ids=ids.data_ptr(),
            rows=logits.shape[0],
            columns=logits.shape[1],
            type=structs.TYPES[logits.dtype],
        )
        self._argmax(ctypes.byref(args))
        return ids

    def sample(self, logits: Tensor, draws: Draws) -> Tensor:
        """kernels.sample."""
        if draws.all_greedy:
            return self.argmax(logits)
        if logits.dtype not in TYPES or not logits.is_contiguous():
            return sample.cpu(logits, draws)
        ids, packed = torch.empty(logits.shape[0], dtype=torch.int64), structs.draws(draws)
        args = structs.SampleArgs(
            logits=logits.data_ptr(),
            draws=packed.ctypes.data,
            ids=ids.data_ptr(),
            rows=logits.shape[0],
            columns=logits.shape[1],
            type=structs.TYPES[logits.dtype],
        )
        self._sample(ctypes.byref(args))
        return ids

    def logprobs(self, logits: Tensor, ids: Tensor, wanted: WantedLogprobs, candidates: Tensor | None = None) -> Tensor:
        """kernels.logprobs; of equals the lower ids come first."""
        if logits.dtype not in TYPES or not logits.is_contiguous():
            return logprobs.reference(logits, ids, wanted, candidates)
        ids, candidates = ids.contiguous(), None if candidates is None else candidates.contiguous()
        made, out, kept = structs.logprobs(wanted, *logits.shape)
        made.logits, made.ids, made.type = logits.data_ptr(), ids.data_ptr(), structs.TYPES[logits.dtype]
        made.candidates = None if candidates is None else candidates.data_ptr()
        self._logprobs(ctypes.byref(made))
        del kept
        return out


def takes_heads(model: torch.dtype, cache: torch.dtype, head_dim: int) -> bool:
    """Whether the C++ computes attention with these types of the model and its cache."""
    return model in TYPES and cache in (model, torch.int8, INT4) and head_dim <= MAX_HEAD_DIM and head_dim % 2 == 0


def takes_norm(model: torch.dtype, weight: Tensor) -> bool:
    """Whether the C++ normalises with a weight of this type."""
    return weight.dtype in (model, torch.float32)


def cpu_kernels(library: Library) -> CpuKernels:
    """The functions of a library."""
    return CpuKernels(
        library.amx,
        library.invariant,
        *(
            library.function(name, ctypes.c_void_p)
            for name in ("attention", "norm", "split_qkv", "act_and_mul", "gather", "argmax", "sample", "logprobs")
        ),
    )
