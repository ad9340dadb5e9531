"""How several equal devices could hold and compute one model: tensor-parallel ranks in pipeline stages, with experts whole or cut.

For each layout what the device that holds most leaves for the KV cache, and what it takes at best, from the roofline of a step and
an allowance for what devices exchange. Called by `kvasir plan --count`. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from kvasir_api.forecast import MemoryFit, ModelShape
from kvasir_api.roofline import LAYER_S, ROW_S, STEP_S, Roofline
from kvasir_api.weight_offload import LINK_BYTES_PER_S

PROMPT_TOKENS: Final = 1024
EXCHANGE_S: Final = 0.00001
"""What an exchange takes besides its bytes: an allowance, as LINK_BYTES_PER_S is where cards have links of their own."""
PART_TOKENS: Final = 32
PARTS_PER_STAGE: Final = 4
"""A step goes through stages in parts of so many tokens at least: each part reads all weights of a stage, which takes longer than to
compute with fewer. And in so many for each stage at most: stages fill and drain in one part for each further stage, little of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """tensor: ranks that compute each layer together; stages: that layers are divided among. whole_experts: a rank has some
    experts, and not a part of each.
    """

    tensor: int
    stages: int
    whole_experts: bool = False

    @property
    def devices(self) -> int:
        """One for each rank of each stage."""
        return self.tensor * self.stages


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutForecast:
    """kv_tokens: of the cache, which every device has its part of. ttft_s: of a prompt of PROMPT_TOKENS, at most as long as requests
    may be. tpot_s: of one request alone. batch_tokens_per_s: of requests that fill the cache. price_per_million: of tokens of these, in
    the unit of the price of a device and hour. All four are 0 where nothing is known of the device. chosen: the smallest that fits and
    meets the objective.
    """

    layout: Layout
    fits: bool
    kv_tokens: int
    ttft_s: float = 0.0
    tpot_s: float = 0.0
    batch_tokens_per_s: float = 0.0
    price_per_million: float = 0.0
    chosen: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """room_bytes: of one device, for weights and cache. one: the forecast of one device. max_sequences: that run at once. longest:
    tokens of a request. ttft_s: the objective, 0 for none. price_per_hour: of one device.
    """

    room_bytes: int
    one: MemoryFit
    max_sequences: int
    longest: int
    ttft_s: float = 0.0
    price_per_hour: float = 0.0


def possible(shape: ModelShape, count: int) -> tuple[Layout, ...]:
    """Layouts of at most count devices: those whose heads, stages and experts divide. In the order of their devices."""
    found = [Layout(tensor=1, stages=1)]
    for tensor in range(1, count + 1):
        divides = shape.heads % tensor == 0 and (shape.kv_heads % tensor == 0 or tensor % shape.kv_heads == 0)
        for stages in range(1, count // tensor + 1):
            if tensor * stages == 1 or not divides or stages > shape.layers or count % (tensor * stages):
                continue
            found.append(Layout(tensor=tensor, stages=stages))
            if shape.experts >= tensor > 1:
                found.append(Layout(tensor=tensor, stages=stages, whole_experts=True))
    return tuple(sorted(found, key=lambda layout: (layout.devices, -layout.tensor, layout.whole_experts)))


def forecasts(
    shape: ModelShape, wanted: Wanted, layouts: Sequence[Layout], roofline: Roofline | None
) -> tuple[LayoutForecast, ...]:
    """One for each layout. roofline: of one device, None where nothing is known of it."""
    found = [_forecast(shape, wanted, layout, roofline) for layout in layouts]
    able = [one for one in found if one.fits and (not wanted.ttft_s or 0 < one.ttft_s <= wanted.ttft_s)]
    best = min(able, key=lambda one: (one.layout.devices, one.tpot_s, one.layout.stages), default=None)
    return tuple(replace(one, chosen=one is best) for one in found)


def kv_tokens(shape: ModelShape, wanted: Wanted, layout: Layout) -> int:
    """Of the cache beside the weights of the heaviest stage, were each token to take what it takes in the stage that has most."""
    table = 0 if shape.tied else shape.vocabulary * shape.hidden
    beside = wanted.one.weights_bytes * (table + shape.vocabulary * shape.hidden) // shape.parameters
    each = (wanted.one.weights_bytes - beside) // shape.layers
    first = _layers_of_first(shape.layers, each, beside, layout.stages)
    most = first if layout.stages == 1 else max(first, -(-(shape.layers - first) // (layout.stages - 1)))
    heaviest = max(first * each + beside, most * each) // layout.tensor
    shared = max(1 / layout.tensor, 1 / shape.kv_heads) if not shape.latent_row else 1.0
    token_bytes = wanted.one.kv_bytes_per_token * most * shared / shape.layers
    return max(int((wanted.room_bytes - heaviest) / token_bytes), 0) if token_bytes else 0


def _layers_of_first(layers: int, layer_bytes: int, beside_bytes: int, stages: int) -> int:
    """So that the heaviest stage is as light as can be, where the first has something beside its layers."""
    if stages == 1:
        return layers

    def heaviest(first: int) -> int:
        return max(first * layer_bytes + beside_bytes, -(-(layers - first) // (stages - 1)) * layer_bytes)

    return min(range(1, layers - stages + 2), key=heaviest)


def _forecast(shape: ModelShape, wanted: Wanted, layout: Layout, roofline: Roofline | None) -> LayoutForecast:
    tokens = kv_tokens(shape, wanted, layout)
    fits = tokens >= wanted.one.sequence_tokens
    held = LayoutForecast(layout=layout, fits=fits, kv_tokens=tokens)
    if roofline is None or not fits or not shape.head:
        return held
    rows = max(1, min(wanted.max_sequences, tokens // shape.block_tokens))
    context = shape.longest_sequence(tokens // rows, 1, wanted.longest)
    batch = rows / _step_s(roofline, layout, rows, rows * context)
    return replace(
        held,
        ttft_s=_prompt_s(roofline, layout, min(PROMPT_TOKENS, wanted.longest)),
        tpot_s=_step_s(roofline, layout, 1, min(PROMPT_TOKENS, wanted.longest)),
        batch_tokens_per_s=batch,
        price_per_million=wanted.price_per_hour * layout.devices / 3600 / batch * 1e6,
    )


def _step_s(roofline: Roofline, layout: Layout, rows: int, context: int) -> float:
    """Of a token for each of rows sequences: such a step is in one stage at a time. context: of all of them together."""
    work, card = roofline.work, roofline.card
    read_s = work.read_bytes(tokens=rows, rows=rows, context=context) / card.memory_bytes_per_s
    computed_s = work.flops(tokens=rows, heads=rows, context=context) / card.flops_per_s
    fixed_s = STEP_S + LAYER_S * roofline.shape.layers + ROW_S * rows
    return max(read_s, computed_s) / layout.tensor + fixed_s + _exchange_s(roofline.shape, layout, rows)


def _prompt_s(roofline: Roofline, layout: Layout, tokens: int) -> float:
    """Until the first token of a prompt that waits for none: its parts are in all stages at once, but when these fill."""
    work, stages = roofline.work, layout.stages
    parts = max(min(tokens // PART_TOKENS, PARTS_PER_STAGE * stages), 1) if stages > 1 else 1
    computed_s = work.flops(tokens=tokens, heads=1, context=tokens * tokens / 2) / roofline.card.flops_per_s
    read_s = work.read_bytes(tokens=tokens, rows=1, context=tokens) / roofline.card.memory_bytes_per_s
    whole_s = max(computed_s, read_s * parts) / layout.tensor + LAYER_S * roofline.shape.layers * parts
    return whole_s * (parts + stages - 1) / (parts * stages) + STEP_S + _exchange_s(roofline.shape, layout, tokens)


def _exchange_s(shape: ModelShape, layout: Layout, tokens: int) -> float:
    """Two sums a layer among ranks, of which each moves its part twice, and a hidden state from stage to stage, in 16 bits."""
    state_s = 2 * tokens * shape.hidden / LINK_BYTES_PER_S
    sums = 2 * shape.layers if layout.tensor > 1 else 0
    sent = layout.stages if layout.stages > 1 else 0
    return sums * (EXCHANGE_S + 2 * state_s * (layout.tensor - 1) / layout.tensor) + sent * (EXCHANGE_S + state_s)
