"""The sizes of a model as a config.json states them, and what its weights and its cache take by them: pure arithmetic.

`forecast.shape` makes them; the facts that the operator has of a model are these.
"""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Final

from kvasir_api import cache_groups, layer_kinds, stored_bits, weight_offload
from kvasir_api.cache_groups import LayerAttention
from kvasir_api.family_fields import MOST_LAYERS
from kvasir_api.layer_kinds import LayerKind
from kvasir_api.stored_bits import IN_FULL, HeldBits

BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
KV_SCALE_BYTES: Final = 4
"""Of the float32 beside each int8 or int4 row of one token and head."""

FP8_SIXTEENTHS: Final = 16
INT4_SIXTEENTHS: Final = 10
"""Of a byte that a weight of a layer takes: 4 bits, and in each group of 32 a float16 scale and minimum. The head has 8 bits as of
int8 in all. Of fp8 the float32 scale of a row is left out: a thousandth, and so are those of rows on processors."""


MOST_PARAMETERS: Final = 10**15
_SIZES: Final = ("hidden", "intermediate", "heads", "kv_heads", "head_dim", "vocabulary", "max_positions")
"""At least 1 in every model."""

_AMOUNTS: Final = (
    "active_parameters",
    "head",
    "experts",
    "chosen_experts",
    "expert_size",
    "state_bytes",
    "latent_row",
)
"""0 where a model has none of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a decoder. parameters counts every weight once (tied embeddings once); active are those that a token is computed with.

    intermediate: the widest that a token's feed-forward layers are, those of its experts side by side. experts, chosen_experts: in a
    layer, and those of them that a token goes to; 0 without, or where that was not told. expert_size: intermediate numbers of one.
    attentions: one for each cache group; group_layers: how many layers each has. state_bytes: of the state of a layer that has one in
    place of keys and values. latent_row: numbers of a token in one layer, where keys and values are compressed.
    head: numbers of a head over the vocabulary, be it the table of embeddings (tied) or not.
    held: in how many bits their numbers are, on cards; cpu_held: on processors, which `inspection.held_on` chooses.
    kinds: of layers, with how many numbers each has; pattern: as of `layer_kinds.folded`.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    max_positions: int
    parameters: int
    active_parameters: int
    kinds: tuple[LayerKind, ...]
    head: int
    tied: bool
    dtype: str
    attentions: tuple[LayerAttention, ...]
    group_layers: tuple[int, ...]
    pattern: str = ""
    experts: int = 0
    chosen_experts: int = 0
    expert_size: int = 0
    state_bytes: int = 0
    latent_row: int = 0
    held: HeldBits = IN_FULL
    cpu_held: HeldBits = IN_FULL

    @property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """Of each layer."""
        return layer_kinds.each(self.kinds, self.pattern, self.layers)

    @property
    def matrices(self) -> int:
        """Numbers of the layers' matrices."""
        return sum(kind.matrices for kind in self.layer_kinds)

    @property
    def routed(self) -> int:
        """Numbers of all experts that tokens are sent to."""
        return sum(kind.routed for kind in self.layer_kinds)

    @property
    def stored_plain(self) -> int:
        """Numbers of matrices that a checkpoint in fewer bits leaves in full, which only a reader of names knows."""
        return sum(kind.plain for kind in self.layer_kinds)

    @property
    def joined(self) -> frozenset[int]:
        """Layers that read what the layer before them reads: no stage begins with one."""
        return frozenset(layer for layer, kind in enumerate(self.layer_kinds) if kind.joined)

    @property
    def cache_group_of(self) -> tuple[int, ...]:
        """Of each layer its cache group: those of an attention are filled in the order of layers."""
        left, found = [*self.group_layers], list[int]()
        for kind in self.layer_kinds:
            own = kind.group
            while not left[own] or self.attentions[own] != self.attentions[kind.group]:
                own += 1
            left[own] -= 1
            found.append(own)
        return tuple(found)

    def weights_bytes(self, dtype: str, quantization: str = "auto") -> int:
        """Bytes of all weights in dtype (float32, bfloat16, float16), matrices and head as quantized (auto, none, fp8, int8, int4).

        With auto a checkpoint stays in its own bits, as do numbers of it that are in as many as the quantization has.
        """
        _, head = self._sixteenths(dtype, quantization)
        plain = self.parameters - self.matrices - (0 if self.tied else self.head)
        return plain * BYTES[dtype] + self._matrices_bytes(dtype, quantization) + int(self.head * head // 16)

    def layer_bytes(self, dtype: str, quantization: str) -> tuple[int, ...]:
        """Of the weights of each layer, as above."""
        sizes = {
            kind: kind.others * BYTES[dtype] + self._held_bytes(kind.matrices, kind.plain, dtype, quantization)
            for kind in self.kinds
        }
        return tuple(sizes[kind] for kind in self.layer_kinds)

    def expert_bytes(self, dtype: str, quantization: str) -> tuple[int, ...]:
        """The same of its experts alone."""
        kinds = tuple(LayerKind(matrices=kind.routed, plain=kind.plain_routed) for kind in self.kinds)
        return replace(self, kinds=kinds, held=self.held.with_experts(1.0)).layer_bytes(dtype, quantization)

    def _sixteenths(self, dtype: str, quantization: str) -> tuple[float, float]:
        """Of a byte for a number of the matrices and of the head, 0 of a head that is the table in dtype."""
        full = 16 * BYTES[dtype]
        head = 0 if self.tied else full
        if quantization == "auto":
            return self.held.stored or full, head
        layers = {"fp8": FP8_SIXTEENTHS, "int8": self.held.int8, "int4": INT4_SIXTEENTHS}
        return (layers[quantization], self.held.int8) if quantization in layers else (full, head)

    def _matrices_bytes(self, dtype: str, quantization: str) -> int:
        """Of those of the layers, as held."""
        return self._held_bytes(self.matrices, self.stored_plain, dtype, quantization)

    def _held_bytes(self, numbers: int, plain: int, dtype: str, quantization: str) -> int:
        """Of so many numbers of matrices, of which a checkpoint in fewer bits leaves some in full."""
        layers, _ = self._sixteenths(dtype, quantization)
        stored = dict(self.held.kept).get(quantization, layers)
        full = 16 * BYTES[dtype] if quantization == "auto" else layers
        return int((plain * full + (numbers - plain) * stored) // 16)

    def host_weights_bytes(self, dtype: str, quantization: str, limit_bytes: int) -> tuple[int, int]:
        """Bytes of the layers that stay on the host, and by how much fewer they leave on the device, where buffers for them are.

        limit_bytes: weightsHostBytes; dtype and quantization as above. Layers count as equals.
        """
        each = self._matrices_bytes(dtype, quantization) // self.layers
        count = len(weight_offload.chosen([each] * self.layers, limit_bytes)) if limit_bytes else 0
        return count * each, max(0, count - weight_offload.BUFFERS) * each

    def kv_bytes_per_token(self, dtype: str, layers: range | None = None) -> int:
        """Bytes of keys and values of one token in every layer, or in these, and what blocks leave empty. dtype: as above, or int8,
        int4 or fp8.
        """
        counts = self.group_layers
        if layers is not None:
            own = Counter(self.cache_group_of[layers.start : layers.stop])
            counts = tuple(own[group] for group in range(len(counts)))
        token_bytes = self.layer_bytes_per_token(dtype)
        return cache_groups.bytes_per_token(
            self.attentions,
            counts,
            token_bytes=token_bytes,
            state_bytes=self.state_bytes,
            block_size=cache_groups.least_block_size(token_bytes=token_bytes, state_bytes=self.state_bytes),
        )

    def block_bytes(self, dtype: str, block_size: int) -> int:
        """Of a block of one cache group, of block_size tokens or as many as a state takes. dtype: as above."""
        token_bytes = self.layer_bytes_per_token(dtype)
        least = cache_groups.least_block_size(token_bytes=token_bytes, state_bytes=self.state_bytes)
        return max(block_size, least) * self.kv_bytes_per_token(dtype) // len(self.attentions)

    def layer_bytes_per_token(self, dtype: str) -> int:
        """Bytes of keys and values of one token in one layer; 0 of a model that keeps none. dtype: as above."""
        if self.keeps_nothing:
            return 0
        width = self.latent_row or self.head_dim
        rows = {"fp8": width, "int8": width + KV_SCALE_BYTES, "int4": width // 2 + KV_SCALE_BYTES}
        row = rows[dtype] if dtype in rows else width * BYTES[dtype]
        return row if self.latent_row else 2 * self.kv_heads * row

    @property
    def keeps_nothing(self) -> bool:
        """Whether it has no KV cache: an encoder."""
        return cache_groups.keeps_nothing(self.attentions)

    def step_tokens(self, max_batch_tokens: int, longest: int) -> int:
        """Tokens of the largest step, which computes the longest sequence whole where nothing is kept."""
        return max(max_batch_tokens, longest) if self.keeps_nothing else max_batch_tokens

    @property
    def block_tokens(self) -> int:
        """Tokens of the least block, as which a state counts; 1 without states, where other blocks change hardly anything."""
        token_bytes = self.layer_bytes_per_token(self.dtype)
        return cache_groups.least_block_size(token_bytes=token_bytes, state_bytes=self.state_bytes)

    def sequence_tokens(self, num_tokens: int, chunk_tokens: int) -> int:
        """Tokens of capacity that a sequence takes at once at most: fewer than its own where layers see a window only.

        chunk_tokens: computed in one step at most.
        """
        size = self.block_tokens
        blocks = cache_groups.blocks_of_sequence(
            self.attentions, num_tokens, block_size=size, chunk_tokens=chunk_tokens
        )
        return -(-blocks * size // len(self.attentions))

    def longest_sequence(self, capacity_tokens: int, chunk_tokens: int, limit: int) -> int:
        """Tokens of the longest sequence, at most limit, that a cache of so many tokens holds alone."""
        size = self.block_tokens
        blocks = capacity_tokens * len(self.attentions) // size
        return cache_groups.longest_sequence(
            self.attentions, blocks, block_size=size, chunk_tokens=chunk_tokens, limit=limit
        )

    def requests(self, capacity_tokens: int, num_tokens: int, chunk_tokens: int) -> float:
        """Sequences of so many tokens that a cache holds at once, of which one at a time computes a chunk of its prompt."""
        most, held = self.sequence_tokens(num_tokens, chunk_tokens), self.sequence_tokens(num_tokens, 1)
        return capacity_tokens / most if capacity_tokens < most else (capacity_tokens - most + held) / held


def check(shape: ModelShape) -> None:
    """Raises ValueError for sizes that the arithmetic of a forecast, which divides by some, does not expect: for what was read from elsewhere."""
    if not 1 <= shape.layers <= MOST_LAYERS or not 1 <= shape.parameters <= MOST_PARAMETERS:
        raise ValueError("facts of a model without layers, or with an absurd number of layers or parameters")
    if not shape.attentions or len(shape.attentions) != len(shape.group_layers):
        raise ValueError(
            f"facts of a model with {len(shape.attentions)} attentions for {len(shape.group_layers)} groups of layers"
        )
    least = dict.fromkeys(_SIZES, 1) | dict.fromkeys(_AMOUNTS, 0)
    for name, smallest in least.items():
        if getattr(shape, name) < smallest:
            raise ValueError(f"facts of a model whose {name} is {getattr(shape, name)}, expected at least {smallest}")
    for held in (shape.held, shape.cpu_held):
        sizes = (held.int8, *(size for _, size in held.kept))
        if min(sizes) < 1 or not 0 <= max(held.stored, *sizes) <= stored_bits.MOST or held.stored < 0:
            raise ValueError(
                f"facts of a model whose numbers take {held}, of which 1 to {stored_bits.MOST} are possible"
            )
    if min(shape.group_layers) < 1 or sum(shape.group_layers) != shape.layers:
        raise ValueError(f"facts of a model of {shape.layers} layers in groups of {list(shape.group_layers)}")
    firsts = [shape.attentions.index(attention) for attention in shape.attentions]
    if refusal := layer_kinds.refusal(shape.kinds, shape.pattern, shape.group_layers, firsts):
        raise ValueError(f"facts of a model with {refusal}")
    if (numbers := sum(kind.matrices + kind.others for kind in shape.layer_kinds)) > shape.parameters:
        raise ValueError(f"facts of a model of {shape.parameters} parameters with {numbers} in its layers")
