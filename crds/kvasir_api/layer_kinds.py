"""Which layers of a model are alike, and how many numbers one of each kind has: for forecasts, and for cuts into stages.

Pure arithmetic on the fields of a flattened config.json.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kvasir_api import falcon_h1, nemotron_h
from kvasir_api.cache_groups import CacheGroup
from kvasir_api.compressed_attention import CompressedAttention
from kvasir_api.dense_layers import DenseLayer
from kvasir_api.expert_layers import ExpertLayers

MOST_KINDS: Final = 10
"""A digit names the kind of a layer."""


class LayerKind(NamedTuple):
    """Of one layer how many numbers are in matrices, routed of them in experts, and how many others are never quantized.

    plain: of matrices that a checkpoint in fewer bits leaves in full, plain_routed of them in experts. group: first cache group
    of its attention; such groups are filled in the order of layers. joined: whether it reads what the layer before it reads.
    """

    matrices: int
    others: int = 0
    routed: int = 0
    plain: int = 0
    plain_routed: int = 0
    group: int = 0
    joined: bool = False

    def with_experts(self, part: int, whole: int) -> "LayerKind":
        """With so many of the numbers of its experts, and as large a part of those in full."""
        routed, plain = self.routed * part // whole, -(-self.plain_routed * part // whole)
        return self._replace(
            matrices=self.matrices - self.routed + routed,
            routed=routed,
            plain=self.plain - self.plain_routed + plain,
            plain_routed=plain,
        )


def of(
    config: Mapping[str, Any],
    groups: Sequence[CacheGroup],
    compressed: CompressedAttention,
    experts: ExpertLayers,
    dense: DenseLayer,
    *,
    hidden: int,
    intermediate: int,
    rows: int,
) -> tuple[LayerKind, ...]:
    """Of each layer. rows: of the projections of attention and, as columns, out of it."""
    bare, joined = (_layers_in(config, field) for field in (nemotron_h.BARE, falcon_h1.JOINED))
    routed = experts.products * (experts.latent or hidden) * experts.number * experts.size
    gates = 1 if experts.shared and str(config.get("model_type", "")).startswith("qwen") else 0
    sparse = LayerKind(
        matrices=routed + experts.products * hidden * experts.shared + 2 * hidden * experts.latent,
        others=hidden * (experts.number + gates) + experts.biases,
        routed=routed,
    )
    found = dict[int, LayerKind]()
    attentions = [group.attention for group in groups]
    for group in groups:
        is_compressed = group.attention.kind == compressed.kind
        matrices = compressed.matrices if is_compressed else hidden * rows
        others = compressed.others if is_compressed else dense.head_norms + dense.attention_biases
        for layer in group.layers:
            is_bare, is_joined = layer in bare and layer not in experts.layers, layer in joined
            behind = LayerKind(matrices=dense.products * hidden * intermediate, others=dense.mlp_biases)
            behind = sparse if layer in experts.layers else LayerKind(0) if is_bare else behind
            found[layer] = behind._replace(
                matrices=matrices + behind.matrices,
                others=others + behind.others + (2 - is_bare - is_joined) * dense.norms // 2,
                group=attentions.index(group.attention),
                joined=is_joined,
            )
    return tuple(found[layer] for layer in sorted(found))


def folded(layers: Sequence[LayerKind]) -> tuple[tuple[LayerKind, ...], str]:
    """The kinds of these layers, in the order in which they first come, and of each layer the digit of its own; "" where all are alike.

    Of more kinds than have digits, numbers that are left in full count alike in layers that are alike otherwise.
    """
    if len(set(layers)) > MOST_KINDS:
        layers = _evened(layers)
    kinds = tuple(dict.fromkeys(layers))
    return kinds, "".join(str(kinds.index(one)) for one in layers) if len(kinds) > 1 else ""


def refusal(kinds: Sequence[LayerKind], pattern: str, group_layers: Sequence[int], first_groups: Sequence[int]) -> str:
    """Why these cannot be the kinds of the layers of cache groups; "" where they can.

    group_layers: of each group. first_groups: of each group the first one of its attention.
    """
    layers = sum(group_layers)
    if pattern and (len(pattern) != layers or not set(pattern) <= set(map(str, range(len(kinds))))):
        return f"{len(pattern)} layers of kinds {sorted(set(pattern))}, where there are {layers} of {len(kinds)} kinds"
    if not kinds or len(kinds) > MOST_KINDS or len(kinds) > 1 > len(pattern):
        return f"{len(kinds)} kinds of layers"
    for kind in kinds:
        parts = (kind.matrices, kind.routed, kind.plain_routed), (kind.matrices, kind.plain, kind.plain_routed)
        if any(tuple(sorted(one, reverse=True)) != one for one in parts) or min(kind.plain_routed, kind.others) < 0:
            return f"layers of {kind}"
    if each(kinds, pattern, layers)[0].joined:
        return "a first layer that reads what one before it reads"
    wanted = Counter[int]()
    for first, count in zip(first_groups, group_layers, strict=True):
        wanted[first] += count
    has = Counter(kind.group for kind in each(kinds, pattern, layers))
    return "" if has == wanted else f"{dict(has)} layers in cache groups of {dict(wanted)}"


def each(kinds: Sequence[LayerKind], pattern: str, layers: int) -> tuple[LayerKind, ...]:
    """The kind of each of so many layers."""
    return tuple(kinds[int(digit)] for digit in pattern) or (kinds[0],) * layers


def _layers_in(config: Mapping[str, Any], field: str) -> frozenset[int]:
    given = config.get(field)
    return frozenset(one for one in given if isinstance(one, int)) if isinstance(given, list) else frozenset()


def _evened(layers: Iterable[LayerKind]) -> list[LayerKind]:
    alike = dict[LayerKind, list[LayerKind]]()
    for one in (layers := [*layers]):
        alike.setdefault(one._replace(plain=0, plain_routed=0), []).append(one)
    return [_mean(alike[one._replace(plain=0, plain_routed=0)]) for one in layers]


def _mean(layers: Sequence[LayerKind]) -> LayerKind:
    plain, routed = (-(-sum(one[of] for one in layers) // len(layers)) for of in (3, 4))
    return layers[0]._replace(plain=plain, plain_routed=routed)
