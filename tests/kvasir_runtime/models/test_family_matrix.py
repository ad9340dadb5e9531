"""Each family in each precision, however the work is cut into steps: by the declarations, so that a new one comes in.

`make test` computes as few families as have every part of a layer that any has, `make test-long` all of them in all
precisions. Operations are those of torch, to which tests of kernels hold the others.
"""

import inspect
import os
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import cycle, product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fakes import (
    bitsandbytes_checkpoints,
    e2m1_checkpoints,
    family_configs,
    family_cover,
    fp8_checkpoints,
    hqq_checkpoints,
    integer_checkpoints,
)
from fakes.by_hand import Hand, runner_of
from fakes.family_cover import DOCUMENTS, covering, parts
from fakes.integer_checkpoints import Style
from fakes.mixed_streams import mixed_streams
from fakes.oracle import Oracle
from kvasir_api import hf_config
from kvasir_api.options import Quantization
from kvasir_runtime.kernels import kv_quant
from kvasir_runtime.kernels.cpu.ops import CPU
from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.config import checked
from kvasir_runtime.models.registry import DENSE, SPARSE, declared, family_of

Logits = Callable[[tuple[int, ...]], Tensor]
TIE = 1e-4
LINES_OF_A_FAMILY = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """most_off: root mean square of what a position's logits are off by, as a part of their spread; of other rows it
    would be about 1.4. The median of positions counts: where rounding chooses another expert, which a few of a random
    model have, all logits of that position are of other matrices. quantization, cached: as of `runner_of`. rewrite: as
    of `family_cover.convert`; logits are then compared with those of the file's numbers in full.
    """

    most_off: float
    quantization: Quantization = "auto"
    cached: torch.dtype | None = None
    rewrite: Callable[..., dict[str, Tensor]] | None = None


EXACT, IN_8_BITS = 1e-4, 0.15
PRECISIONS = {
    "fp8": Precision(most_off=0.4, quantization="fp8"),
    "int8": Precision(most_off=IN_8_BITS, quantization="int8"),
    "int4": Precision(most_off=0.8, quantization="int4"),
    "gptq": Precision(most_off=EXACT, rewrite=partial(integer_checkpoints.convert, style=Style(method="gptq"))),
    "awq": Precision(
        most_off=EXACT, rewrite=partial(integer_checkpoints.convert, style=Style(method="awq", symmetric=False))
    ),
    "fp8-block": Precision(most_off=IN_8_BITS, rewrite=partial(fp8_checkpoints.convert, style="block")),
    "nvfp4": Precision(most_off=EXACT, rewrite=partial(e2m1_checkpoints.convert, style="nvfp4")),
    "nf4": Precision(most_off=IN_8_BITS, rewrite=partial(bitsandbytes_checkpoints.convert, style="nf4-nested")),
    "hqq": Precision(most_off=IN_8_BITS, rewrite=partial(hqq_checkpoints.convert, style=hqq_checkpoints.Style())),
    "kv-int8": Precision(most_off=IN_8_BITS, cached=torch.int8),
    "kv-int4": Precision(most_off=0.8, cached=kv_quant.INT4),
}


def is_there(name: str, precision: str) -> bool:
    """Whether a model has what it is about."""
    if PRECISIONS[precision].cached is None:
        return True
    config = checked(Path("config.json"), hf_config.flattened(DOCUMENTS[name]))
    spec = family_of(config).spec(config)
    kinds = {attention.kind for attention in spec.attentions}
    return kinds != {"state"} and not (precision == "kv-int4" and spec.latent is not None)


def cases() -> list[tuple[str, str]]:
    if os.environ.get("KVASIR_FAMILY_MATRIX") == "all":
        return [pair for pair in product(DOCUMENTS, PRECISIONS) if is_there(*pair)]
    return [pair for pair in zip(covering(), cycle(PRECISIONS), strict=False) if is_there(*pair)]


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Logits]]:
    """The folder of a model in full, and its logits by transformers."""
    root = tmp_path_factory.mktemp("matrix")

    @cache
    def written(name: str) -> tuple[Path, Logits]:
        folder = root / name
        judge = family_cover.write(folder, name)
        if judge is None:
            return folder, Oracle(folder).logits
        return folder, lambda tokens: judge(torch.tensor([tokens]), use_cache=False).logits[0]

    return written


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(random.Random(seed * 10_007 + length).choices(range(3, family_configs.VOCAB), k=length))


@torch.inference_mode()
@pytest.mark.parametrize(("name", "precision"), cases())
def test_in_each_precision_a_family_answers_the_same_however_work_is_cut(
    judged: Callable[[str], tuple[Path, Logits]], tmp_path: Path, name: str, precision: str
) -> None:
    (folder, logits), chosen, tokens = judged(name), PRECISIONS[precision], prompt(40)
    if chosen.rewrite is not None:
        folder, full = family_cover.convert(folder, tmp_path, chosen.rewrite)
    runner = runner_of(folder, ops=CPU, num_blocks=1024, quantization=chosen.quantization, cache_dtype=chosen.cached)
    for stream in mixed_streams(Hand(runner), prompt):
        known = runner.logits(tuple(stream.tokens))[len(stream.prompt) - 1 : -1]
        given = known.gather(1, torch.tensor(stream.answer)[:, None])[:, 0]
        assert (given >= known.amax(dim=1) - TIE).all()
    found, wanted = runner.logits(tokens), logits(tokens).float()
    assert (apart(found, wanted) > 0).all()
    if chosen.rewrite is not None:
        wanted = runner_of(full, ops=CPU).logits(tokens)
    assert apart(found, wanted).median() < chosen.most_off


def apart(found: Tensor, wanted: Tensor) -> Tensor:
    """By position, as of `Precision.most_off`."""
    return (found - wanted).square().mean(dim=1).sqrt() / wanted.std()


def test_every_family_is_computed_here() -> None:
    architectures = {name for document in DOCUMENTS.values() for name in document["architectures"]}
    found = {declared([name]) for name in architectures}
    assert [family.architecture for family in (*DENSE, *SPARSE) if family not in found] == []
    assert set(covering()) <= set(DOCUMENTS)
    assert len(covering()) < len(DOCUMENTS) / 2
    assert {name for name, _ in cases()} >= set(covering())
    assert {precision for _, precision in cases()} == set(PRECISIONS)


def test_a_dense_family_costs_few_lines() -> None:
    """Of code, where several share a module each its share."""
    modules = [family.spec.__module__ for family in (*DENSE, *SPARSE)]
    for module in {family.spec.__module__ for family in DENSE}:
        source = inspect.getsource(sys.modules[module]).splitlines()
        code = [line for line in source if line.strip() and not line.strip().startswith(("#", "from ", "import "))]
        assert len(code) / modules.count(module) <= LINES_OF_A_FAMILY, module


def test_parts_are_those_that_differ_from_llamas() -> None:
    assert parts(DOCUMENTS["llama"]) == {"attention full"}
    assert "ExpertsSpec.scaled_inputs" in parts(DOCUMENTS["llama4"])
    assert "StateSpec.rule" in parts(DOCUMENTS["granite4"])
    assert DecoderSpec.__name__ + ".alibi" in parts(DOCUMENTS["mpt"])
