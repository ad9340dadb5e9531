"""Each family in each precision, however the work is cut into steps: by the declarations, so that a new one comes in.

`make test` computes as few families as have every part of a layer that any has, `make test-long` all of them in all
precisions. Operations are those of torch, to which tests of kernels hold the others.
"""

import inspect
import os
import random
import sys
from collections.abc import Callable
from functools import cache
from itertools import cycle, product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes import family_configs, family_cover
from fakes.by_hand import Hand, runner_of
from fakes.family_cover import DOCUMENTS, covering, parts
from fakes.mixed_streams import mixed_streams
from fakes.oracle import Oracle
from kvasir_runtime.kernels.cpu.ops import CPU
from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.registry import DENSE, SPARSE, declared

Logits = Callable[[tuple[int, ...]], Tensor]
TIE = 1e-4
MOST_OFF = {"fp8": 0.4, "int8": 0.15, "int4": 0.8}
"""Root mean square of what a position's logits are off by, as a part of their spread; of other rows it would be about
1.4. The median of positions counts: where rounding chooses another expert, which a few of a random model have, all
logits of that position are of other matrices.
"""
LINES_OF_A_FAMILY = 60


def cases() -> list[tuple[str, str]]:
    if os.environ.get("KVASIR_FAMILY_MATRIX") == "all":
        return list(product(DOCUMENTS, MOST_OFF))
    return list(zip(covering(), cycle(MOST_OFF), strict=False))


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
def test_quantized_in_place_a_family_answers_the_same_however_work_is_cut(
    judged: Callable[[str], tuple[Path, Logits]], name: str, precision: Any
) -> None:
    folder, logits = judged(name)
    runner = runner_of(folder, ops=CPU, num_blocks=1024, quantization=precision)
    for stream in mixed_streams(Hand(runner), prompt):
        known = runner.logits(tuple(stream.tokens))[len(stream.prompt) - 1 : -1]
        given = known.gather(1, torch.tensor(stream.answer)[:, None])[:, 0]
        assert (given >= known.amax(dim=1) - TIE).all()
    tokens = prompt(40)
    wanted = logits(tokens).float()
    off = (runner.logits(tokens) - wanted).square().mean(dim=1).sqrt() / wanted.std()
    assert (off > 0).all()
    assert off.median() < MOST_OFF[precision]


def test_every_family_is_computed_here() -> None:
    architectures = {name for document in DOCUMENTS.values() for name in document["architectures"]}
    found = {declared([name]) for name in architectures}
    assert [family.architecture for family in (*DENSE, *SPARSE) if family not in found] == []
    assert set(covering()) <= set(DOCUMENTS)
    assert len(covering()) < len(DOCUMENTS) / 2


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
