"""Deviations are their formulas, and the logits that are compared are those of the model."""

import math
from pathlib import Path

import pytest
import torch

from fakes import checkpoints
from fakes.by_hand import runner_of
from fakes.oracle import Oracle
from kvasir_runtime.accuracy_messages import AccuracyJob
from kvasir_runtime.runner.accuracy import deviation, deviations


def logits(*rows: tuple[float, ...]) -> torch.Tensor:
    """Rows of probabilities as logits."""
    return torch.tensor(rows).log()


def test_deviation_is_its_formula() -> None:
    base = [logits((0.5, 0.25, 0.25), (0.2, 0.7, 0.1)), logits((0.1, 0.1, 0.8))]
    other = [logits((0.25, 0.5, 0.25), (0.2, 0.7, 0.1)), logits((0.1, 0.1, 0.8))]
    found = deviation("other", base, other, [[0, 1], [2]])
    first = 0.5 * math.log(0.5 / 0.25) + 0.25 * math.log(0.25 / 0.5)
    assert found.tokens == 3
    assert found.top1_agreement_fraction == pytest.approx(2 / 3)
    assert found.mean_kl == pytest.approx(first / 3, abs=1e-6)
    assert found.max_kl == pytest.approx(first, abs=1e-6)
    # Only the first text has a next token: 1, to which base gives a quarter and other a half.
    assert found.base_perplexity == pytest.approx(4, rel=1e-6)
    assert found.perplexity == pytest.approx(2, rel=1e-6)


def test_long_texts_are_compared_piece_by_piece_without_a_seam() -> None:
    generator = torch.Generator().manual_seed(0)
    base, other = torch.randn(200, 50, generator=generator), torch.randn(200, 50, generator=generator)
    text = torch.randint(0, 50, (200,), generator=generator).tolist()
    found = deviation("other", [base], [other], [text])
    p, q = base.double().log_softmax(1), other.double().log_softmax(1)
    assert found.mean_kl == pytest.approx(float((p.exp() * (p - q)).sum(1).mean()))
    loss = -p[:-1].gather(1, torch.tensor(text[1:])[:, None]).mean()
    assert found.base_perplexity == pytest.approx(math.exp(float(loss)))


@pytest.mark.parametrize("length", [1, 37, 200])
def test_logits_are_those_of_the_oracle(tmp_path: Path, length: int) -> None:
    folder = checkpoints.write(tmp_path)
    runner = runner_of(folder)
    tokens = tuple((7 * i) % 300 + 3 for i in range(length))
    for _ in range(2):  # nothing is left of the first text
        torch.testing.assert_close(runner.logits(tokens), Oracle(folder).logits(tokens), atol=1e-4, rtol=0)


def test_fewer_bits_deviate_more(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path, checkpoints.Shape(hidden_size=128, intermediate_size=256, std=0.05))
    job = AccuracyJob(
        model=str(folder),
        options={"dtype": "float32", "quantization": "none", "device": "cpu"},
        base_name="plain",
        texts=[list(range(3, 120)), list(range(50, 90))],
        variants=[(name, {"quantization": name}) for name in ("fp8", "int8", "int4")],
    )
    base, fp8, int8, int4 = deviations(job)
    assert (base.name, base.mean_kl, base.top1_agreement_fraction) == ("plain", 0.0, 1.0)
    assert 0 < int8.mean_kl < int4.mean_kl / 20
    assert 4 * int8.mean_kl < fp8.mean_kl < int4.mean_kl
    assert int8.top1_agreement_fraction > 0.97
    assert base.weights_bytes > int8.weights_bytes > int4.weights_bytes
