"""A decoder whose layers are those of a model of transformers, over the paged cache of this engine.

The model computes the tokens of a step as one sequence, (1, tokens), with the position of each; only attention knows
which sequence a token belongs to, and the model calls it by transformers' registry of attention functions. It writes
keys and values to the cache and computes with the operations of the device, so that scheduler, prefix cache, sampling
and drafts are those of every other model. What a model keeps between steps elsewhere than in keys and values is not
carried: `observed` refuses what it can see of that, and `transformers_check` compares.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from kvasir_runtime.errors import ModelError
from kvasir_runtime.kernels.decoder_step import ForwardOutput
from kvasir_runtime.kernels.kv_cache import KvCache
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.layers.batch import Batch
from kvasir_runtime.layers.decoder import Decoder
from kvasir_runtime.layers.spec import DecoderSpec

ATTENTION: Final = "kvasir_paged"
"""Under which the attention of this module is registered."""
_PLACE: Final = "kvasir_attention"
"""Attribute of every module of a model: the attention that its calls go to."""
_OBSERVED_TOKENS: Final = 37
"""A number that no size of a model is."""
_UNCHANGING: Final = (
    *("dropout", "position_ids", "position_embeddings", "cache_position", "use_cache", "deterministic", "return_dict"),
    *("output_attentions", "output_hidden_states", "output_router_logits", "num_items_in_batch"),
)
"""What layers pass beside, on which scores do not depend. Anything else that one passes is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """What a layer gives attention: heads of queries, of keys and values, numbers of each, and its window, or 0."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    window: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What a forward pass showed of a model: the call of each layer, and widths of hidden states and logits."""

    calls: tuple[AttentionCall, ...]
    hidden_size: int
    vocab_size: int


class _Scores(NamedTuple):
    """What is done to scores: as `kernels.attention` has it."""

    scale: float
    window: int
    softcap: float
    sinks: Tensor | None


class _Attention(Protocol):
    """Attention of one call: query, key, value (tokens, heads, dim) to (tokens, heads, value_dim)."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scores: _Scores) -> Tensor: ...


class _Observer:
    """Collects calls, and attends to one sequence without a cache."""

    def __init__(self) -> None:
        self.calls: list[AttentionCall] = []

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scores: _Scores) -> Tensor:
        self.calls.append(
            AttentionCall(
                heads=query.shape[1],
                kv_heads=key.shape[1],
                head_dim=key.shape[2],
                value_dim=value.shape[2],
                window=scores.window,
            )
        )
        q, k, v = (one.transpose(0, 1).unsqueeze(0) for one in (query, key, value))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scores.scale, enable_gqa=True)
        return out[0].transpose(0, 1)


class _CountedPlaces(TorchFunctionMode):
    """Finds out whether numbers are counted up for the observed tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.counted = False

    def __torch_function__(self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self.counted |= function is torch.arange and result.numel() == _OBSERVED_TOKENS
        return result


class _Paged:
    """The n-th call of a forward pass is the n-th layer's."""

    def __init__(self, spec: DecoderSpec, ops: Ops, dtype: torch.dtype) -> None:
        self._spec, self._ops, self._dtype = spec, ops, dtype
        self._step: tuple[Batch, KvCache] | None = None
        self._layer = 0

    def begin(self, batch: Batch, cache: KvCache) -> None:
        """Before each forward pass."""
        self._step, self._layer = (batch, cache), 0

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scores: _Scores) -> Tensor:
        assert self._step is not None
        (batch, cache), layer = self._step, self._layer
        self._layer += 1
        blocks, group, seen = cache.layers[layer], cache.groups[layer], self._spec.attentions[layer]
        value_dim, dtype = value.shape[2], query.dtype
        if value_dim < key.shape[2]:  # halves of the cache are alike; zeros add nothing to what is taken
            value = F.pad(value, (0, key.shape[2] - value_dim))
        query, key, value = (one.to(self._dtype).contiguous() for one in (query, key, value))
        self._ops.write_kv(key, value, blocks, batch.slots[group])
        out = self._ops.attention(
            query,
            blocks,
            batch.attn_metadata[group],
            scores.scale,
            seen.window,
            scores.softcap,
            scores.sinks,
            seen.chunk,
        )
        return out.view(query.shape)[..., :value_dim].to(dtype)


class TransformersDecoder(Decoder):
    """Computes what `Decoder` does, operation by operation; hidden states of single layers (`keep`) are not known."""

    def __init__(self, spec: DecoderSpec, ops: Ops, model: nn.Module) -> None:
        """model: a causal model of transformers with its weights on the device, and ATTENTION, `registered`, as its
        attention. spec: its sizes, and what its layers see.
        """
        self.spec = spec
        self.step = None
        self._ops, self._group, self._classifier = ops, None, None
        self._paged = _Paged(spec, ops, next(model.parameters()).dtype)
        self._body, self._given = body_of(model), _Given()
        self._head = partial(_logits, _with(model, self._body, self._given), self._given)
        _send(model, self._paged)

    def forward(self, batch: Batch, cache: KvCache) -> ForwardOutput:
        self._paged.begin(batch, cache)
        output = _output(self._body, batch.token_ids, batch.positions)
        self._given.kind = type(output)
        hidden, rows = output.last_hidden_state[0], batch.logit_rows
        return ForwardOutput(hidden=hidden if rows is None else hidden.index_select(0, rows))


def registered(attention_functions: Any) -> None:
    """Make the attention of this module known. attention_functions: transformers' AttentionInterface."""
    attention_functions.register(ATTENTION, _attend)


def observed(model: nn.Module, num_layers: int) -> Observed:
    """Of a model as `TransformersDecoder` takes it.

    Raises ModelError where not each layer calls attention once, and where positions are others than are given.
    """
    observer, given, body = _Observer(), _Given(), body_of(model)
    head = _with(model, body, given)
    _send(model, observer)
    ids = torch.arange(_OBSERVED_TOKENS, device=next(model.parameters()).device)
    with _CountedPlaces() as places:
        output = _output(body, ids, ids)
    if len(observer.calls) != num_layers:
        raise ModelError(
            f"its {num_layers} layers call transformers' attention {len(observer.calls)} times, expected once each:"
            " others have a state, or an attention of their own, which blocks of the cache do not hold"
        )
    if places.counted:
        raise ModelError("it counts places of tokens in a step, where requests lie side by side, as positions")
    given.kind, hidden = type(output), output.last_hidden_state[0]
    logits = _logits(head, given, hidden)
    return Observed(calls=tuple(observer.calls), hidden_size=hidden.shape[1], vocab_size=logits.shape[1])


def body_of(model: Any) -> Any:
    """The decoder in a model, which has no head. Raises ModelError where there is none of its own."""
    found: tuple[Any, ...] = (model.get_decoder(), model.base_model, getattr(model, "model", None))
    body = next((one for one in found if isinstance(one, nn.Module) and one is not model), None)
    if body is None:
        raise ModelError("its layers and its head are one module")
    return body


def _output(body: Any, ids: Tensor, positions: Tensor) -> Any:
    """Of one forward pass; last_hidden_state (1, tokens, hidden_size) follows the last norm."""
    return body(input_ids=ids[None], position_ids=positions[None], use_cache=False)


def _send(model: nn.Module, to: _Attention) -> None:
    """From now on calls of attention go there."""
    for module in model.modules():
        setattr(module, _PLACE, to)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """As transformers calls it: query, key, value (1, heads, tokens, dim) to (1, tokens, heads, value_dim).

    others: what a causal attention without dropout does not use. Raises ModelError for what would change scores.
    """
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    changing = [name for name, value in others.items() if value is not None and name not in _UNCHANGING]
    if attention_mask is not None or not causal or changing or query.shape[2] != key.shape[2]:
        raise ModelError(
            f"{type(module).__name__} does not attend to all of a sequence up to each token, nor to a window of it"
            f" ({changing[0] if changing else 'it has a mask or keys of its own'})"
        )
    attention: _Attention = getattr(module, _PLACE)
    q, k, v = (one[0].transpose(0, 1) for one in (query, key, value))
    scale = query.shape[3] ** -0.5 if scaling is None else float(scaling)
    sinks = None if s_aux is None else s_aux.float().flatten()
    out = attention.attend(q, k, v, _Scores(scale, sliding_window or 0, softcap or 0.0, sinks))
    return out.unsqueeze(0), None


class _Given(nn.Module):
    """In place of a model's layers: returns hidden states that are given, as an output of the kind that they return."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: Tensor | None = None
        self.kind: Callable[..., Any] | None = None

    def forward(self, *_: Any, **__: Any) -> Any:
        assert self.kind is not None
        return self.kind(last_hidden_state=self.hidden)


def _with(model: nn.Module, body: nn.Module, given: _Given) -> nn.Module:
    """A copy with the same weights and other layers. body: `body_of` the model."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared | {id(body): given})


def _logits(head: nn.Module, given: _Given, hidden: Tensor) -> Tensor:
    """(rows, vocab): all that the model does behind its layers, scales and caps too. hidden: (rows, hidden_size)."""
    given.hidden = hidden[None]
    ids = torch.zeros((1, hidden.shape[0]), dtype=torch.int64, device=hidden.device)
    logits: Tensor = head(input_ids=ids, use_cache=False).logits
    given.hidden = None
    return logits[0]
