"""A peer: the smallest quick decoder there is, one sequence, a static cache, the whole step compiled into a graph.

What gpt-fast showed in 2023: torch.compile with recorded graphs comes near the card's bandwidth where nothing has to be
scheduled. It knows no batch, no paging and no server, so it says what those cost us. Written for this benchmark.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fakes.checkpoints import Shape

EPS = 1e-6


class Layer(nn.Module):
    """Attention over a cache of fixed length and a gated product, for one new token."""

    keys: Tensor
    values: Tensor

    def __init__(self, shape: Shape, length: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.width = shape.num_heads, shape.num_kv_heads, shape.head_dim
        queries, kv = self.heads * self.width, self.kv_heads * self.width
        self.qkv = nn.Linear(shape.hidden_size, queries + 2 * kv, bias=False)
        self.output = nn.Linear(queries, shape.hidden_size, bias=False)
        self.gate_up = nn.Linear(shape.hidden_size, 2 * shape.intermediate_size, bias=False)
        self.down = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)
        self.before, self.between = nn.RMSNorm(shape.hidden_size, EPS), nn.RMSNorm(shape.hidden_size, EPS)
        self.register_buffer("keys", torch.zeros(1, self.kv_heads, length, self.width))
        self.register_buffer("values", torch.zeros(1, self.kv_heads, length, self.width))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, position: Tensor, seen: Tensor) -> Tensor:
        """x: (1, hidden). seen: (1, 1, 1, length) bool, the places that are filled, position included."""
        sizes = (self.heads, self.kv_heads, self.kv_heads)
        parts = self.qkv(self.before(x)).view(1, -1, self.width).split(sizes, dim=1)
        query, key = (part * cos + _turned(part) * sin for part in parts[:2])
        keys = self.keys.index_copy_(2, position, key.unsqueeze(2))
        values = self.values.index_copy_(2, position, parts[2].unsqueeze(2))
        got = F.scaled_dot_product_attention(query.unsqueeze(2), keys, values, attn_mask=seen, enable_gqa=True)
        x = x + self.output(got.reshape(1, -1))
        gate, up = self.gate_up(self.between(x)).chunk(2, dim=-1)
        out: Tensor = x + self.down(F.silu(gate) * up)
        return out


class Loop(nn.Module):
    """One step: a token and its position in, the next token out."""

    cos: Tensor
    sin: Tensor
    places: Tensor

    def __init__(self, shape: Shape, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape, length) for _ in range(shape.num_layers))
        self.norm = nn.RMSNorm(shape.hidden_size, EPS)
        self.head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        half = torch.arange(0, shape.head_dim, 2).float() / shape.head_dim
        angles = torch.outer(torch.arange(length).float(), 10000.0**-half).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        self.register_buffer("places", torch.arange(length))

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        """(1,) int64 each -> (1,) int64."""
        x = self.embedding(token)
        seen = (self.places <= position).view(1, 1, 1, -1)
        cos, sin = self.cos[position], self.sin[position]
        for layer in self.layers:
            x = layer(x, cos, sin, position, seen)
        logits: Tensor = self.head(self.norm(x))
        return logits.argmax(dim=-1)


def _turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def loop(shape: Shape, length: int, device: torch.device, dtype: torch.dtype) -> Loop:
    """With random weights, made where they are used."""
    with torch.device("meta"):
        model = Loop(shape, length)
    model = model.to(dtype).to_empty(device=device)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                tensor.normal_(0.0, shape.std)
        model.places.copy_(torch.arange(length))
    return model


def stepper(model: Loop, *, on_card: bool) -> Callable[[Tensor, Tensor], Any]:
    """The compiled step; on a CPU it is traced as a whole, but not compiled, which takes a minute."""
    if on_card:
        return torch.compile(model, mode="reduce-overhead", fullgraph=True)
    return torch.compile(model, backend="eager", fullgraph=True)
