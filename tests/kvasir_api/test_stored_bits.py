"""What the matrices of a quantized checkpoint take."""

import pytest

from kvasir_api import stored_bits


def packed(**weights: object) -> dict[str, object]:
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}


def hqq(**weights: object) -> dict[str, object]:
    return {"weight_quant_params": {"nbits": 4, "group_size": 64, "axis": 1} | weights, "scale_quant_params": None}


def mixed(*algorithms: str) -> dict[str, object]:
    layers = {f"model.layers.{at}": {"quant_algo": one} for at, one in enumerate(algorithms)}
    return {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}


@pytest.mark.parametrize("forged", [[1], {"a": 1}, "x", float("inf"), float("nan"), -3, 10**30])
def test_a_config_that_only_claims_to_be_of_gguf_raises_nothing(forged: object) -> None:
    config = {"quant_method": "gguf", "sixteenths": forged, "int4_sixteenths": forged}
    assert stored_bits.sixteenths(config) in (0, 64)
    assert stored_bits.kept(config) in ((), (("int4", 64),))


@pytest.mark.parametrize(
    ("config", "want"),
    [
        (None, 0),
        ({}, 0),
        ({"quant_method": "fp8"}, 17),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 17),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 10),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, 10),
        ({"quant_method": "gptq", "bits": 4, "group_size": 16}, 17),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32}, 12),
        ({"quant_method": "hqq", "quant_config": hqq(group_size=32)}, 12),
        ({"quant_method": "gptq", "bits": 8, "group_size": 32}, 17),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, 10),
        (packed(num_bits=4, group_size=128), 10),
        (packed(num_bits=8), 17),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": None}}, 0),
        ({"quant_method": "compressed-tensors"}, 0),
        ({"quant_method": "hqq", "quant_config": hqq()}, 10),
        ({"quant_method": "hqq", "quant_config": hqq(nbits=1.58, group_size=None)}, 10),
        ({"quant_method": "hqq", "quant_config": hqq(nbits=8)}, 17),
        ({"quant_method": "hqq", "quant_config": hqq(nbits=3, group_size=16)}, 17),
        ({"quant_method": "hqq", "quant_config": hqq(nbits=2, axis=0)}, 17),
        ({"quant_method": "hqq", "quant_config": {"mlp.up_proj": hqq(nbits=2), "mlp.down_proj": hqq(nbits=8)}}, 17),
        ({"quant_method": "hqq", "quant_config": {"mlp.up_proj": hqq(nbits=2), "mlp.down_proj": None}}, 10),
        ({"quant_method": "hqq", "quant_config": hqq(nbits="4")}, 0),
        ({"quant_method": "hqq"}, 0),
        ({"quant_method": "other", "bits": 4}, 0),
    ],
)
def test_sixteenths_of_a_byte(config: dict[str, object] | None, want: int) -> None:
    assert stored_bits.sixteenths(config) == want


@pytest.mark.parametrize(
    ("config", "card", "processor"),
    [
        ({"quant_method": "mxfp4"}, 11, 11),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 9, 9),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, 17, 16.25),
        (mixed("NVFP4", "FP8"), 17, 16.25),
        (mixed("NVFP4", "NVFP4"), 9, 9),
        (mixed(), 17, 16.25),
        (packed(num_bits=4, type="float", group_size=16), 9, 9),
        (packed(num_bits=4, type="float", group_size=32), 8.5, 8.5),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 10, 8.5),
        ({"quant_method": "gptq", "bits": 4, "group_size": 64}, 10, 9),
        ({"quant_method": "awq", "bits": 4, "group_size": 32}, 12, 10),
        ({"quant_method": "gptq", "bits": 4, "group_size": 16}, 17, 17),
        ({"quant_method": "gptq", "bits": 8, "group_size": 64}, 17, 16.5),
        ({"quant_method": "gptq", "bits": 8, "group_size": 32}, 17, 17),
        (packed(num_bits=8), 17, 16.25),
        ({"quant_method": "fp8"}, 17, 16.25),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 17, 16.25),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 17, 8.5),
        ({"quant_method": "gguf", "sixteenths": 12, "cpu_sixteenths": 10}, 12, 10),
    ],
)
def test_processors_hold_numbers_in_other_bits_than_cards(
    config: dict[str, object], card: float, processor: float
) -> None:
    assert stored_bits.sixteenths(config, 0.9) == card
    assert stored_bits.sixteenths(config, 0.9, device="cpu") == processor


BLOCKS = {"num_bits": 8, "type": "float", "strategy": "block"}


@pytest.mark.parametrize(
    ("config", "want"),
    [
        (None, ()),
        ({"quant_method": "other"}, ()),
        ({"quant_method": "gptq", "bits": 4, "group_size": 64}, (("int4", 10),)),
        ({"quant_method": "awq", "bits": 4, "group_size": 32}, (("int4", 12),)),
        ({"quant_method": "gptq", "bits": 8, "group_size": 64}, ()),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, ()),
        ({"quant_method": "fp8"}, ()),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, (("fp8", 17),)),
        (packed(**BLOCKS), (("fp8", 17),)),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, (("int8", 20),)),
        ({"quant_method": "mxfp4"}, (("int8", 18),)),
        ({"quant_method": "gguf", "sixteenths": 14}, ()),
        ({"quant_method": "gguf", "sixteenths": 14, "int4_sixteenths": 11}, (("int4", 11),)),
        (
            {"quant_method": "hqq", "quant_config": {"mlp.up_proj": hqq(), "mlp.down_proj": hqq(nbits=8)}},
            (("int4", 10),),
        ),
    ],
)
def test_what_an_option_of_as_many_bits_leaves_as_it_is(config: dict[str, object] | None, want: object) -> None:
    assert stored_bits.kept(config, experts_fraction=0.9) == want


@pytest.mark.parametrize(
    ("config", "want"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, (("int4", 8.5),)),
        ({"quant_method": "gptq", "bits": 8, "group_size": 32}, (("int8", 17),)),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, ()),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, (("int8", 18),)),
        ({"quant_method": "mxfp4"}, (("int8", 17),)),
        ({"quant_method": "gguf", "sixteenths": 14, "int4_sixteenths": 12, "cpu_int4_sixteenths": 10}, (("int4", 10),)),
    ],
)
def test_what_an_option_leaves_takes_on_processors(config: dict[str, object], want: object) -> None:
    """Which have 8 bits of their own by 128 columns."""
    assert stored_bits.kept(config, experts_fraction=0.9, device="cpu") == want


@pytest.mark.parametrize(("columns", "want"), [((256, 0, 128), 16.25), ((256, 192), 17)])
def test_own_eight_bits_are_by_128_columns_on_processors(columns: tuple[int, ...], want: float) -> None:
    assert stored_bits.own_eight_bits(columns, "cpu") == want
    assert stored_bits.own_eight_bits(columns, "cuda") == 17


@pytest.mark.parametrize(
    ("config", "columns", "want"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, (576, 1536), 10),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, (96, 256), 12),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, (96, 256), 12),
        ({"quant_method": "hqq", "quant_config": hqq()}, (192, 0, 384), 10),
        ({"quant_method": "hqq", "quant_config": hqq(group_size=128)}, (192, 384), 17),
        ({"quant_method": "hqq", "quant_config": hqq(group_size=32)}, (96, 384), 12),
        ({"quant_method": "hqq", "quant_config": hqq(group_size=0)}, (96,), 12),
        ({"quant_method": "hqq", "quant_config": hqq(group_size=-64)}, (128,), 10),
    ],
)
def test_rows_bound_the_groups_that_are_held(config: dict[str, object], columns: tuple[int, ...], want: int) -> None:
    assert stored_bits.sixteenths(config, columns=columns) == want
