"""How several equal devices could hold and compute one model: tensor-parallel ranks in pipeline stages, with experts whole or cut.

For each layout what the device that holds most leaves for the KV cache, and what it takes at best, from the roofline of a step and
what devices exchange by their links and networks. Called by `kvasir plan --count` and by `pod_layouts`. Pure.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from kvasir_api import attention_heads, expert_layers
from kvasir_api.forecast import PROCESS_BYTES, MemoryFit, RankPart
from kvasir_api.layer_kinds import LayerKind
from kvasir_api.model_shape import BYTES, ModelShape
from kvasir_api.roofline import LAYER_S, ROW_S, STEP_S, Roofline
from kvasir_api.stage_cut import Cut, LayerCosts, StageRoom, balanced_stages, unread_experts
from kvasir_api.stored_bits import Compute

PROMPT_TOKENS: Final = 1024
EXCHANGE_S: Final = 0.00001
"""What an exchange takes besides its bytes: an allowance."""
NETWORK_BYTES_PER_S: Final = 12_500_000_000
"""Of a node in one direction, where it is not declared: 100 Gbit/s."""
NODE_DEVICES: Final = 8
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
    the unit of the price of a device and hour. moved_s: that the blocks of that prompt take by the network from a replica of the same
    layout, where one has the role of prompts. All five are 0 where nothing is known of the device. price_per_hour: of all devices.
    chosen: the smallest that fits and meets the objectives.
    """

    layout: Layout
    fits: bool
    kv_tokens: int
    ttft_s: float = 0.0
    tpot_s: float = 0.0
    batch_tokens_per_s: float = 0.0
    price_per_million: float = 0.0
    moved_s: float = 0.0
    price_per_hour: float = 0.0
    chosen: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightParts:
    """Of the weights of one device, in bytes. held: of each layer, and of the table of embeddings and the head, which the first of
    several stages has beside its layers. read: of these what each step reads that stages are balanced for. A table is looked up for a
    few tokens, and of the experts those are left out that no request of the step goes to.
    """

    held: LayerCosts
    read: LayerCosts


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """room_bytes: of one device, for weights and cache. one: the forecast of one device. parts: of its weights. max_sequences: that run
    at once. longest: tokens of a request. ttft_s, tpot_s: the objectives, 0 for none. price_per_hour: of one device.
    network_bytes_per_s: of a node of so many devices, in one direction.
    """

    room_bytes: int
    one: MemoryFit
    parts: WeightParts
    max_sequences: int
    longest: int
    ttft_s: float = 0.0
    tpot_s: float = 0.0
    price_per_hour: float = 0.0
    network_bytes_per_s: float = NETWORK_BYTES_PER_S
    node_devices: int = NODE_DEVICES

    def met_by(self, one: LayoutForecast) -> bool:
        """Whether a layout meets the objectives: one of which no speed is known meets none."""
        pairs = (one.ttft_s, self.ttft_s), (one.tpot_s, self.tpot_s)
        return all(0 < seconds <= objective for seconds, objective in pairs if objective)


def room_bytes(one: MemoryFit, device: Compute, memory_bytes: int, memory_fraction: float) -> int:
    """Of a device for weights and cache, beside a process and what its largest step takes."""
    return int(memory_bytes * memory_fraction) - PROCESS_BYTES[device] - one.activation_bytes


def possible(shape: ModelShape, count: int) -> tuple[Layout, ...]:
    """Layouts of at most count devices: those whose heads, stages and experts divide. In the order of their devices."""
    found = [Layout(tensor=1, stages=1)]
    for tensor in range(1, count + 1):
        for stages in range(1, count // tensor + 1):
            if tensor * stages == 1 or stages > most_stages(shape) or count % (tensor * stages):
                continue
            ways = (False, True) if shape.experts and tensor > 1 else (False,)
            each = (Layout(tensor=tensor, stages=stages, whole_experts=whole) for whole in ways)
            found += [layout for layout in each if _divides(shape, layout)]
    return tuple(sorted(found, key=lambda layout: (layout.devices, -layout.tensor, layout.whole_experts)))


def _divides(shape: ModelShape, layout: Layout) -> bool:
    try:
        attention_heads.part(shape.heads, shape.kv_heads, ranks=layout.tensor)
        if shape.experts:
            expert_layers.part(shape.experts, shape.expert_size, ranks=layout.tensor, whole=layout.whole_experts)
    except ValueError:
        return False
    return True


def most_stages(shape: ModelShape) -> int:
    """That its layers can be cut into."""
    return shape.layers - len(shape.joined)


def forecasts(
    shape: ModelShape, wanted: Wanted, layouts: Sequence[Layout], roofline: Roofline | None
) -> tuple[LayoutForecast, ...]:
    """One for each layout. roofline: of one device, None where nothing is known of it."""
    found = [_forecast(shape, wanted, layout, roofline) for layout in layouts]
    able = [one for one in found if one.fits and wanted.met_by(one)]
    best = min(able, key=lambda one: (one.layout.devices, one.tpot_s, one.layout.stages), default=None)
    return tuple(replace(one, chosen=one is best) for one in found)


def weight_parts(shape: ModelShape, dtype: str, quantization: str) -> WeightParts:
    """As they are held."""
    table = shape.vocabulary * shape.hidden
    tables = table + (0 if shape.tied else shape.head)
    outside = replace(shape, parameters=tables, kinds=(LayerKind(matrices=0),), pattern="")
    beside, table_bytes = outside.weights_bytes(dtype, quantization), table * BYTES[dtype]
    layers, experts = shape.layer_bytes(dtype, quantization), shape.expert_bytes(dtype, quantization)
    unread = unread_experts(shape.chosen_experts, shape.experts)
    return WeightParts(
        held=LayerCosts(layers=layers, first=max(shape.weights_bytes(dtype, quantization) - sum(layers), 0)),
        read=LayerCosts(
            layers=[int(size - unread * own) for size, own in zip(layers, experts, strict=True)],
            first=(beside - table_bytes or table_bytes) if shape.head else 0,
        ),
    )


def stage_room(shape: ModelShape, one: MemoryFit, room_bytes: int, tensor: int) -> StageRoom:
    """Of a stage of so many ranks. one: the forecast of one device, with the tokens that the cache has to hold. room_bytes: of each."""
    cache_bytes = int(one.sequence_tokens * one.kv_bytes_per_token * _cache_copies(shape, tensor))
    return StageRoom(
        num_bytes=room_bytes * tensor,
        layer_cache_bytes=-(-cache_bytes // max(shape.group_layers)),
        groups=shape.cache_group_of,
    )


def of_data_rank(shape: ModelShape, ranks: int, *, whole_experts: bool) -> ModelShape:
    """What one of so many data-parallel ranks holds: its part of the experts, of whole ones as many as the rank with most, and
    of the vocabulary; all else is on each. Raises ValueError with what a start says where they cannot be divided so.
    """
    try:
        if not shape.routed or not shape.experts * shape.expert_size:
            raise ValueError(expert_layers.NOTHING_TO_SHARE)
        experts, size = expert_layers.part(shape.experts, shape.expert_size, ranks=ranks, whole=whole_experts)
    except ValueError as error:
        option = expert_layers.option("data", ranks, whole=whole_experts)
        raise ValueError(f"{option} is not possible: {error}") from error
    vocabulary, chosen = -(-shape.vocabulary // ranks), min(shape.chosen_experts, experts)
    tables = 2 if shape.head and not shape.tied else 1
    kinds = tuple(kind.with_experts(experts * size, shape.experts * shape.expert_size) for kind in shape.kinds)
    part = replace(
        shape,
        vocabulary=vocabulary,
        head=vocabulary * shape.hidden if shape.head else 0,
        experts=experts,
        chosen_experts=chosen,
        expert_size=size,
        kinds=kinds,
    )
    fewer = shape.routed - part.routed
    parameters = shape.parameters - fewer - (shape.vocabulary - vocabulary) * shape.hidden * tables
    fraction = part.routed / max(part.matrices, 1)
    return replace(
        part,
        parameters=parameters,
        active_parameters=parameters - part.routed * (experts - chosen) // experts,
        held=shape.held.with_experts(fraction),
        cpu_held=shape.cpu_held.with_experts(fraction),
    )


def kv_tokens(shape: ModelShape, wanted: Wanted, layout: Layout) -> int:
    """Of the cache beside the weights of the heaviest stage, were each token to take what it takes in the stage that has most."""
    part = largest(shape, wanted, layout)
    per_token = part.kv_bytes_per_token
    return max((wanted.room_bytes - part.weights_bytes) // per_token, 0) if per_token else 0


def largest(shape: ModelShape, wanted: Wanted, layout: Layout) -> RankPart:
    """What a rank holds at most. Raises ValueError where layers cannot be cut so."""
    cut = _cut(shape, wanted, layout)
    token_bytes = max(shape.kv_bytes_per_token(wanted.one.kv_dtype, stage) for stage in cut)
    return RankPart(
        weights_bytes=wanted.parts.held.most(cut) // layout.tensor,
        kv_bytes_per_token=math.ceil(token_bytes * _cache_copies(shape, layout.tensor) / layout.tensor),
    )


def _cache_copies(shape: ModelShape, tensor: int) -> float:
    """How often ranks of a stage have the cache of a token together: key heads that they share count on each."""
    return tensor if shape.latent_row else max(1.0, tensor / shape.kv_heads)


def _cut(shape: ModelShape, wanted: Wanted, layout: Layout) -> Cut:
    """As the runtime cuts."""
    room = stage_room(shape, wanted.one, wanted.room_bytes, layout.tensor)
    return balanced_stages(wanted.parts.read, wanted.parts.held, layout.stages, room, shape.joined)


def _forecast(shape: ModelShape, wanted: Wanted, layout: Layout, roofline: Roofline | None) -> LayoutForecast:
    tokens = kv_tokens(shape, wanted, layout)
    fits = tokens >= wanted.one.sequence_tokens
    held = LayoutForecast(
        layout=layout, fits=fits, kv_tokens=tokens, price_per_hour=wanted.price_per_hour * layout.devices
    )
    if roofline is None or not fits or not shape.head:
        return held
    rows = max(1, min(wanted.max_sequences, tokens // shape.block_tokens))
    context = shape.longest_sequence(tokens // rows, 1, wanted.longest)
    batch = rows / _step_s(roofline, wanted, layout, rows, rows * context)
    prompt_tokens, nodes = min(PROMPT_TOKENS, wanted.longest), _nodes(wanted, layout)
    return replace(
        held,
        ttft_s=_prompt_s(roofline, wanted, layout, prompt_tokens),
        tpot_s=_step_s(roofline, wanted, layout, 1, prompt_tokens),
        batch_tokens_per_s=batch,
        price_per_million=held.price_per_hour / 3600 / batch * 1e6,
        moved_s=EXCHANGE_S + wanted.one.kv_bytes_per_token * prompt_tokens / (wanted.network_bytes_per_s * nodes),
    )


def _step_s(roofline: Roofline, wanted: Wanted, layout: Layout, rows: int, context: int) -> float:
    """Of a token for each of rows sequences: such a step is in one stage at a time. context: of all of them together."""
    work, card = roofline.work, roofline.card
    read_s = work.read_bytes(tokens=rows, rows=rows, context=context) / card.memory_bytes_per_s
    computed_s = work.flops(tokens=rows, heads=rows, context=context) / card.flops_per_s
    fixed_s = STEP_S + LAYER_S * roofline.shape.layers + ROW_S * rows
    return max(read_s, computed_s) / layout.tensor + fixed_s + _exchange_s(roofline, wanted, layout, rows)


def _prompt_s(roofline: Roofline, wanted: Wanted, layout: Layout, tokens: int) -> float:
    """Until the first token of a prompt that waits for none: its parts are in all stages at once, but when these fill."""
    work, stages = roofline.work, layout.stages
    parts = max(min(tokens // PART_TOKENS, PARTS_PER_STAGE * stages), 1) if stages > 1 else 1
    computed_s = work.flops(tokens=tokens, heads=1, context=tokens * tokens / 2) / roofline.card.flops_per_s
    read_s = work.read_bytes(tokens=tokens, rows=1, context=tokens) / roofline.card.memory_bytes_per_s
    whole_s = max(computed_s, read_s * parts) / layout.tensor + LAYER_S * roofline.shape.layers * parts
    return whole_s * (parts + stages - 1) / (parts * stages) + STEP_S + _exchange_s(roofline, wanted, layout, tokens)


def _exchange_s(roofline: Roofline, wanted: Wanted, layout: Layout, tokens: int) -> float:
    """Two sums a layer among ranks, of which each moves its part twice, and a hidden state from stage to stage, in 16 bits.

    Ranks of a node by its links, others by the network. Of a ring of stages over nodes one hop for each node is by the network.
    """
    shape, num_bytes = roofline.shape, 2 * tokens * roofline.shape.hidden
    link_s, network_s = num_bytes / roofline.card.link_bytes_per_s, num_bytes / wanted.network_bytes_per_s
    sums = 2 * shape.layers if layout.tensor > 1 else 0
    sum_s = 2 * (link_s if layout.tensor <= wanted.node_devices else network_s) * (layout.tensor - 1) / layout.tensor
    sent, nodes = layout.stages if layout.stages > 1 else 0, _nodes(wanted, layout)
    far = min(sent, nodes) if nodes > 1 else 0
    return sums * (EXCHANGE_S + sum_s) + sent * EXCHANGE_S + far * network_s + (sent - far) * link_s


def _nodes(wanted: Wanted, layout: Layout) -> int:
    """Nodes that a layout takes: one that holds a stage whole has all ranks of that stage."""
    whole_stages = max(1, wanted.node_devices // layout.tensor)
    return -(-layout.stages // whole_stages) * -(-layout.tensor // wanted.node_devices)
