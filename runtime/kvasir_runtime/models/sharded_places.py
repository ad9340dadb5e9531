"""Which part of each tensor of a checkpoint a rank reads. Called by `load_model` for models on several ranks.

A family declares its places for any sizes, so a rank's are those of its part's spec: where they are smaller than those
of the whole decoder, the rank has the part of its index: of each section of a tensor that holds several matrices.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from kvasir_runtime.layers.rank import Rank
from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.family import Extent, Place

BY_ID: Final = ("embedding", "head.weight", "head.bias")
"""Divided by ids, perhaps into parts of different sizes; all others into equal ones, which ranks may share."""


def sharded_places(
    places: Callable[[DecoderSpec], dict[str, Place]], whole: DecoderSpec, part: DecoderSpec
) -> dict[str, Place]:
    """The places of a rank. places: the family's. part: `sharding.shard` of whole."""
    found = divided_places(places, whole, part)
    if part.experts is None or part.experts.held is None:
        return found
    rows = _expert_rows(part)
    return {name: _of_expert(place, part.experts.held, rows) for name, place in found.items()}


def divided_places(
    places: Callable[[DecoderSpec], dict[str, Place]], whole: DecoderSpec, part: DecoderSpec
) -> dict[str, Place]:
    """As `sharded_places`, with whole experts where one process has them."""
    own = places(part)
    return {name: _of_rank(place, own[name], part.rank) for name, place in places(whole).items()}


def expert_places(places: Mapping[str, Place], part: DecoderSpec, experts: Sequence[int]) -> dict[str, Place]:
    """Those of some whole experts, which are read in this order. places: `divided_places` of experts alone."""
    rows = _expert_rows(part)
    found = {name: _of_expert(place, experts, rows) for name, place in places.items()}
    return {name: place for name, place in found.items() if place.rows is None or any(count for _, count in place.rows)}


def _expert_rows(part: DecoderSpec) -> dict[str, int]:
    """Of one expert, by the matrix."""
    assert part.experts is not None
    name, times = part.experts.first
    return {name: times * part.experts.intermediate_size, "down": part.experts.latent_size or part.hidden_size}


def _of_expert(place: Place, held: Sequence[int], rows: Mapping[str, int]) -> Place:
    """Of ranks with whole experts: one of those that it has begins there. rows: of one expert, by the matrix."""
    _, is_expert, matrix = place.tensor.partition(".experts.")
    if not is_expert:
        return place
    each = rows[matrix.partition(".")[0]]
    expert = place.first_row // each
    if expert not in held:
        return replace(place, first_row=0, rows=((0, 0),) * max(len(place.sections), 1))
    return replace(place, first_row=place.first_row + (held.index(expert) - expert) * each)


def _of_rank(whole: Place, own: Place, rank: Rank) -> Place:
    if whole.shape == own.shape:
        return own
    by_id = own.tensor in BY_ID
    sections = zip(whole.sections or whole.shape[:1], own.sections or own.shape[:1], strict=True)
    rows = tuple(_extent(total, kept, rank, by_id=by_id) for total, kept in sections)
    columns = None if whole.shape[1:] == own.shape[1:] else _extent(whole.shape[1], own.shape[1], rank, by_id=False)
    return replace(
        own,
        shape=whole.shape,
        head_order=whole.head_order,
        sections=whole.sections,
        rows=rows if whole.shape[0] != own.shape[0] else None,
        columns=columns,
    )


def _extent(total: int, kept: int, rank: Rank, *, by_id: bool) -> Extent:
    """Within a section."""
    first = total * rank.index // rank.count
    return (first if by_id else first // kept * kept), kept
