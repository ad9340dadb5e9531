"""In-place quantization (ISQ) of what is quantized already: the file's numbers in full, quantized by our rule.

The judge is a checkpoint in float32 of what the format's own definition says that the numbers are worth.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from fakes import (
    bitsandbytes_checkpoints,
    checkpoints,
    e2m1_checkpoints,
    fp8_checkpoints,
    ggufs,
    hqq_checkpoints,
    integer_checkpoints,
    sparse_checkpoints,
)
from fakes.by_hand import Hand, Stream, runner_of
from fakes.checkpoints import Shape
from fakes.integer_checkpoints import Style
from fakes.loaded_weights import loaded
from kvasir_api.options import Quantization
from kvasir_runtime.commands import model_config, model_facts
from kvasir_runtime.kernels.linear import Weight
from kvasir_runtime.kernels.quantized import QuantizedWeight, dequantized
from kvasir_runtime.layers.rank import Rank
from kvasir_runtime.weights import quant_formats

SHAPE = Shape(hidden_size=256, num_heads=8, num_kv_heads=4, head_dim=32, num_layers=1, intermediate_size=256)
EXPERTS = replace(SHAPE, family="qwen3_moe", num_experts=2, expert_size=64)
Written = Callable[[str], tuple[Path, Path]]
TARGETS: tuple[Quantization, ...] = ("none", "fp8", "int8", "int4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """convert: rewrites a checkpoint, and returns what it is worth. kept: the option that leaves it as it is.

    exact: whether every number that it holds is one of float32. rounds: names of weights that no option leaves so.
    """

    convert: Callable[[Path], Mapping[str, Tensor]]
    kept: str = ""
    exact: bool = True
    shape: Shape = SHAPE
    rounds: str = ""


def integers(style: Style) -> Callable[[Path], dict[str, Tensor]]:
    return functools.partial(integer_checkpoints.convert, style=style)


def hqq(style: hqq_checkpoints.Style) -> Callable[[Path], Mapping[str, Tensor]]:
    return functools.partial(hqq_checkpoints.convert, style=style)


def in_style(module: ModuleType, style: str) -> Callable[[Path], dict[str, Tensor]]:
    return functools.partial(module.convert, style=style)


def sparse(quantize: sparse_checkpoints.Quantize) -> Callable[[Path], Mapping[str, Tensor]]:
    return functools.partial(sparse_checkpoints.convert, quantize=quantize)


def gguf(kind: str, **kinds: str) -> Callable[[Path], Mapping[str, Tensor]]:
    """One file in place of the checkpoint's tensors."""

    def convert(folder: Path) -> Mapping[str, Tensor]:
        return ggufs.reference(ggufs.write(folder, folder / "model.gguf", kind=kind, kinds=kinds))

    return convert


ORDERED = Style(method="gptq", act_order=True)
SOURCES = {
    "fp8-tensor": Source(convert=in_style(fp8_checkpoints, "tensor"), kept="fp8"),
    "fp8-channel": Source(convert=in_style(fp8_checkpoints, "channel"), kept="fp8"),
    "fp8-block": Source(convert=in_style(fp8_checkpoints, "block"), kept="fp8"),
    "gptq": Source(convert=integers(Style(method="gptq", group=64, symmetric=False)), kept="int4"),
    "gptq-8": Source(convert=integers(Style(method="gptq", bits=8, group=64)), kept="int8"),
    "gptq-act-order": Source(convert=integers(ORDERED), kept="int4"),
    "awq": Source(convert=integers(Style(method="awq", symmetric=False)), kept="int4"),
    "w4a16": Source(convert=integers(Style(method="packed", group=128)), kept="int4"),
    "w8a8": Source(convert=integers(Style(method="int8", bits=8, group=0)), kept="int8"),
    "sparse-fp8": Source(convert=sparse(in_style(fp8_checkpoints, "channel")), kept="fp8"),
    "sparse-w8a8": Source(convert=sparse(integers(Style(method="int8", bits=8, group=0))), kept="int8"),
    "nf4": Source(convert=in_style(bitsandbytes_checkpoints, "nf4")),
    "nf4-nested": Source(convert=in_style(bitsandbytes_checkpoints, "nf4-nested"), exact=False),
    "bitsandbytes-8": Source(convert=in_style(bitsandbytes_checkpoints, "int8"), kept="int8", exact=False),
    "mxfp4": Source(convert=in_style(e2m1_checkpoints, "mxfp4"), kept="int8"),
    "nvfp4": Source(convert=in_style(e2m1_checkpoints, "nvfp4"), kept="int8", exact=False),
    "modelopt": Source(convert=in_style(e2m1_checkpoints, "modelopt"), kept="int8"),
    "hqq": Source(convert=hqq(hqq_checkpoints.Style()), kept="int4", exact=False),
    "hqq-8-axis-0": Source(convert=hqq(hqq_checkpoints.Style(bits=8, axis=0)), exact=False),
    "q8_0": Source(convert=gguf("Q8_0"), kept="int8"),
    "q4_k": Source(convert=gguf("Q4_K"), kept="int4"),
    "q6_k": Source(convert=gguf("Q6_K")),
    "iq4_nl": Source(convert=gguf("IQ4_NL")),
    "iq4_xs": Source(convert=gguf("IQ4_XS")),
    "awq-experts": Source(convert=integers(Style(method="awq", symmetric=False)), kept="int4", shape=EXPERTS),
    "act-order-experts": Source(convert=integers(ORDERED), kept="int4", shape=EXPERTS, rounds=".experts."),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A source's checkpoint, and that of its judge, by its name."""

    @functools.cache
    def write(name: str) -> tuple[Path, Path]:
        source, root = SOURCES[name], tmp_path_factory.mktemp(name)
        folder, judge = (checkpoints.write(root / part, source.shape) for part in ("model", "judge"))
        full = load_file(folder / "model.safetensors")
        worth = {key: tensor.float() for key, tensor in (full | dict(source.convert(folder))).items()}
        checkpoints.write_weights(judge, worth)
        file = folder / "model.gguf"
        return file if file.exists() else folder, judge

    return write


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", SOURCES)
def test_it_is_that_of_the_numbers_in_full(written: Written, name: str, target: Quantization) -> None:
    check(SOURCES[name], target, *written(name), Rank())


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["fp8-block", "gptq", "awq", "nf4", "mxfp4", "hqq-8-axis-0"])
def test_a_rank_quantizes_its_part(written: Written, name: str, target: Quantization) -> None:
    check(SOURCES[name], target, *written(name), Rank(1, 2))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", SOURCES)
def test_the_forecast_counts_it(written: Written, name: str, target: Quantization) -> None:
    """Scales of rows and orders of columns, which it leaves out, take a hundredth here."""
    folder, _ = written(name)
    tensors = loaded(folder, target, torch.bfloat16, device=quant_formats.CARDS)
    held = sum(num_bytes(weight) for weight in tensors.values())
    shape = model_facts.shape_of(model_config.read_config(str(folder)))
    assert 0.98 * held <= shape.weights_bytes("bfloat16", target) <= 1.06 * held


@pytest.mark.parametrize(
    ("name", "target"),
    [
        (name, target)
        for name in ("fp8-block", "gptq-8", "awq", "nf4", "mxfp4", "q6_k", "act-order-experts")
        for target in TARGETS[1:]
        if target != SOURCES[name].kept
    ],
)
def test_the_engine_answers_as_from_the_numbers_in_full(written: Written, name: str, target: Quantization) -> None:
    """By the kernels of this machine, which quantize too."""
    found, wanted = (answer(folder, target) for folder in written(name))
    assert found == wanted


def answer(folder: Path, target: Quantization) -> list[int]:
    stream = Stream(prompt=tuple(range(3, 30)))
    Hand(runner_of(folder, quantization=target, num_blocks=32, max_sequences=2)).run([stream], 8)
    return list(stream.answer)


def check(source: Source, target: Quantization, folder: Path, judge: Path, rank: Rank) -> None:
    found, wanted, worth = (
        loaded(one, bits, rank=rank) for one, bits in ((folder, target), (judge, target), (judge, "none"))
    )
    assert found.keys() == wanted.keys()
    for name, weight in found.items():
        one = wanted[name]
        if not isinstance(one, QuantizedWeight):
            torch.testing.assert_close(weight, one, rtol=0.0, atol=0.0 if source.exact else 1e-7)
            continue
        full = worth[name]
        assert isinstance(weight, QuantizedWeight)
        assert isinstance(full, Tensor)
        assert weight.format.name == one.format.name
        if target == source.kept and name.startswith("layers.") and not (source.rounds and source.rounds in name):
            torch.testing.assert_close(dequantized(weight), full, rtol=1e-6, atol=1e-7)
        elif source.exact:
            assert weight.format == one.format
            for part, same in zip(parts(weight), parts(one), strict=True):
                assert torch.equal(part, same)
        else:
            errors = [(dequantized(each) - full).square().mean().sqrt() for each in (weight, one)]
            torch.testing.assert_close(*errors, rtol=0.02, atol=1e-7)


def parts(weight: QuantizedWeight) -> list[Tensor]:
    found = [weight.values.view(torch.uint8), weight.scales]
    return found if weight.minima is None else [*found, weight.minima]


def num_bytes(weight: Weight) -> int:
    tensors = [weight] if isinstance(weight, Tensor) else parts(weight)
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
