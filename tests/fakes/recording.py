"""Graphs without a card: the tensor operations of a body are recorded once and replayed on the memory they had.

As on a card, a replay runs no line of the body again, whatever the host said is frozen, results come to the same
addresses, and a body that reads a number back cannot be recorded.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from kvasir_runtime.kernels import rms_norm, rope
from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.kernels.reference import REFERENCE
from kvasir_runtime.runner.graphs.capture import Body, CapturedGraph

_NONZERO = ("aten.nonzero.default", "aten.nonzero_numpy.default", "aten.is_nonzero.default")
READS = {"aten._local_scalar_dense.default", "aten.equal.default", *_NONZERO}


@dataclass(slots=True)
class Replaying:
    """steps: operation, arguments, keywords, and what it gave when it was recorded."""

    outputs: tuple[Tensor, ...]
    steps: list[tuple[Callable[..., Any], Any, Any, list[Tensor]]]
    replays: int = 0

    def replay(self) -> None:
        self.replays += 1
        for function, args, kwargs, kept in self.steps:
            made = [one for one in tree_flatten(function(*args, **kwargs))[0] if isinstance(one, Tensor)]
            for old, new in zip(kept, made, strict=True):
                if old.data_ptr() != new.data_ptr():  # neither a view nor in place: a card would write where it was
                    old.copy_(new)


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.steps: list[tuple[Callable[..., Any], Any, Any, list[Tensor]]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(function) in READS:
            raise RuntimeError(f"operation not permitted when stream is capturing: {function}")
        made = function(*args, **(kwargs or {}))
        kept = [one for one in tree_flatten(made)[0] if isinstance(one, Tensor)]
        self.steps.append((function, args, kwargs or {}, kept))
        return made


@dataclass(slots=True)
class Recordings:
    """A capturer. refuses: sizes of outputs that cannot be recorded. captured: in order."""

    refuses: str = ""
    captured: list[Replaying] = field(default_factory=list)
    num_bytes: int = 0

    def capture(self, body: Body) -> CapturedGraph:
        if self.refuses:
            raise RuntimeError(self.refuses)
        body()
        with _Recorder() as recorder:
            outputs = body()
        made = Replaying(outputs, recorder.steps)
        self.captured.append(made)
        self.num_bytes += sum(one.numel() * one.element_size() for one in outputs)
        return made


def split_qkv(
    qkv: Tensor, norm: Tensor | None, eps: float, cos: Tensor, sin: Tensor, cache: Tensor, slots: Tensor
) -> Tensor:
    """As the reference, for slots none of which is -1, which the reference would look for."""
    kv_heads = cache.shape[3]
    heads = qkv.shape[1] - 2 * kv_heads
    query_key, value = qkv[:, : heads + kv_heads], qkv[:, heads + kv_heads :]
    if norm is not None:
        query_key, _ = rms_norm.reference(query_key, None, norm, eps)
    query_key = rope.reference(query_key, cos, sin)
    size = cache.shape[2]
    for half, rows in zip(cache.unbind(0), (query_key[:, heads:], value), strict=True):
        half.index_put_((slots // size, slots % size), rows)
    return query_key[:, :heads]


def attention(
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
    """Attention that asks the host for nothing: every token has the positions of its sequence gathered for itself."""
    assert softcap == 0.0
    assert sinks is None
    assert slopes is None
    starts, lens = (lengths.long() for lengths in attn_metadata.lengths())
    token = torch.arange(query.shape[0], device=query.device)
    owner = torch.searchsorted(starts[1:].contiguous(), token, right=True)
    position = (lens[owner] - (starts[owner + 1] - token))[:, None, None]
    rows = cache[:, attn_metadata.block_tables.long()[owner]].flatten(2, 3).float()
    group = query.shape[1] // rows.shape[3]  # rows: (2, tokens, positions, kv_heads, head_dim)
    keys, values = rows.repeat_interleave(group, dim=3).unbind(0)
    values = values[..., :value_dim] if value_dim else values
    at = torch.arange(rows.shape[2], device=query.device)
    seen = at <= position
    if window:
        seen = seen & (at > position - window)
    if chunk:
        seen = seen & (at >= position // chunk * chunk)
    scores = torch.einsum("thd,tphd->thp", query.float(), keys) * scale
    weights = torch.where(seen, scores, float("-inf")).softmax(dim=-1)
    values = torch.where(seen.transpose(1, 2)[..., None], values, 0.0)
    return torch.einsum("thp,tphd->thd", weights, values).flatten(1).to(query.dtype)


# All of it asks the host for nothing, as a recording wants.
OPS = replace(REFERENCE, attention=attention, split_qkv=split_qkv)
