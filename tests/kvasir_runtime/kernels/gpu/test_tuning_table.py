"""Launch parameters ship by card: names are found, others take the nearest, and every row fits the card it is for."""

import pytest

pytest.importorskip("triton")

from kvasir_runtime.kernels.gpu import small_gemm
from kvasir_runtime.kernels.gpu.tuning_table import TUNED_GPUS, GpuTuning, nearest

BYTES = {"bits16": 2, "fp8": 1, "fp8_blocks": 1, "int8": 1, "int4": 0.5, "mxfp4": 0.5, "nvfp4": 0.5}


@pytest.mark.parametrize(
    ("name", "capability", "want"),
    [
        ("NVIDIA H200", (9, 0), "H200"),
        ("NVIDIA H100 80GB HBM3", (9, 0), "H100"),
        ("NVIDIA A100-SXM4-80GB", (8, 0), "A100"),
        ("NVIDIA GH200 480GB", (9, 0), "H200"),
        ("NVIDIA GeForce RTX 3090", (8, 6), "A100"),
        ("NVIDIA GeForce RTX 4090", (8, 9), "L40S"),
        ("NVIDIA B200", (10, 0), "H200"),
        ("Tesla T4", (7, 5), "A100"),
    ],
)
def test_a_card_takes_its_table_or_the_nearest(name: str, capability: tuple[int, int], want: str) -> None:
    assert nearest(name, capability, 227 << 10).name == want


def test_what_a_card_has_less_of_in_shared_memory_bounds_its_table() -> None:
    assert nearest("NVIDIA GeForce RTX 5090", (12, 0), 99 << 10).shared_bytes == 99 << 10


@pytest.mark.parametrize("card", TUNED_GPUS, ids=lambda card: card.name)
def test_every_row_reads_two_steps_ahead(card: GpuTuning) -> None:
    for kind, by_rows in card.products.items():
        assert 0 in by_rows
        for most_rows, product in by_rows.items():
            assert product.most_tokens == 64
            only_heads = most_rows == 0 and len(by_rows) > 1
            for tokens, tile in product.tiles.items():
                for halves in (1,) if only_heads else (1, 2):  # of a gated layer
                    stage = product.columns * (halves * tile.rows * BYTES[kind] + 2 * tokens)
                    assert 2 * stage <= min(tile.shared_bytes, card.shared_bytes)


def test_rows_decide_on_the_row_of_the_table() -> None:
    card = TUNED_GPUS[0]
    assert card.product("bits16", 4096) is card.products["bits16"][65536]
    assert card.product("bits16", 128_256) is card.products["bits16"][0]
    assert card.product("bits16", 4096).tile(1).rows == card.product("bits16", 4096).tile(16).rows == 64
    assert card.product("bits16", 4096).tile(33).rows == 128


@pytest.mark.parametrize(
    ("tiles", "steps", "programs", "want"),
    [
        (64, 32, 264, 4),  # 4096 x 4096 on 132 processors, two programs each
        (64, 112, 264, 4),
        (96, 32, 264, 2),
        (224, 32, 264, 1),
        (4, 8, 264, 2),  # few steps
        (1, 1000, 264, 8),
    ],
)
def test_what_has_few_tiles_is_split(tiles: int, steps: int, programs: int, want: int) -> None:
    assert small_gemm.splits(tiles, steps, programs) == want
