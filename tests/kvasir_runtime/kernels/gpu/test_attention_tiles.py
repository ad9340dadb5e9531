"""The shipped launch parameters of attention: which row is taken, and that every one fits its card."""

import pytest

pytest.importorskip("triton")

from kvasir_runtime.kernels.gpu import attention_tiles, tuning_table
from kvasir_runtime.kernels.gpu.attention_tiles import EVERY, LATENT_TABLES, TABLES, AttentionTiles


@pytest.mark.parametrize("card", tuning_table.TUNED_GPUS, ids=lambda card: card.name)
@pytest.mark.parametrize("head", [64, 80, 96, 128, 192, 256])
@pytest.mark.parametrize(("query_bytes", "cache_bytes"), [(2, 2), (2, 1), (4, 4), (4, 1)])
@pytest.mark.parametrize("rows", [4, 64, 5000])
def test_shipped_tiles_fit_their_card(
    card: tuning_table.GpuTuning, head: int, query_bytes: int, cache_bytes: int, rows: int
) -> None:
    chosen = attention_tiles.choose(card.name, head, query_bytes, rows)
    assert chosen.shared_bytes(head, query_bytes, cache_bytes) <= card.shared_bytes
    assert chosen.tile >= 16
    assert chosen.block_m >= min(rows, 16)


@pytest.mark.parametrize("card", tuning_table.TUNED_GPUS, ids=lambda card: card.name)
@pytest.mark.parametrize(("query_bytes", "cache_bytes"), [(2, 2), (2, 1), (4, 4), (4, 1)])
@pytest.mark.parametrize("rows", [4, 64, 5000])
def test_tiles_of_latents_fit_their_card(
    card: tuning_table.GpuTuning, query_bytes: int, cache_bytes: int, rows: int
) -> None:
    chosen = attention_tiles.of_latents(card.name, query_bytes, rows)
    assert chosen.shared_bytes(576, query_bytes, cache_bytes, latent=True) <= card.shared_bytes
    assert attention_tiles.of_latents("a card of next year", query_bytes, rows).tile == 16


def test_every_card_has_a_table_with_a_row_for_any_chunk() -> None:
    assert set(LATENT_TABLES) == set(TABLES) == {card.name for card in tuning_table.TUNED_GPUS}
    for table in TABLES.values():
        assert all(EVERY in rows for rows in table.values())
        assert {size for _, size in table} == {2, 4}


@pytest.mark.parametrize(
    ("card", "head", "query_bytes", "rows", "want"),
    [
        ("H200", 128, 2, 4, (16, 64, 4, 5)),
        ("H200", 80, 2, 4, (16, 64, 4, 5)),
        ("H200", 64, 2, 20, (32, 128, 4, 5)),
        ("H200", 256, 2, 4000, (128, 32, 8, 3)),
        ("H200", 64, 4, 1, (16, 32, 4, 5)),
        ("H200", 512, 2, 1, (16, 16, 4, 5)),
        ("L40S", 128, 2, 1, (16, 32, 4, 5)),
        ("a card of next year", 128, 2, 1, (16, 32, 4, 5)),
    ],
)
def test_the_row_that_is_taken(card: str, head: int, query_bytes: int, rows: int, want: tuple[int, ...]) -> None:
    block_m, tile, num_warps, num_stages = want
    wanted = AttentionTiles(block_m=block_m, tile=tile, num_warps=num_warps, num_stages=num_stages)
    assert attention_tiles.choose(card, head, query_bytes, rows) == wanted
