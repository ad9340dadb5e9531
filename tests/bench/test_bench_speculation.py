"""The controller learns from the oracle what the cell says: so many of its drafts are kept."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from bench.speculation import Decoding
from kvasir_runtime.core.plan import SampledTokens, StepResults


@pytest.mark.parametrize(("rate", "want"), [(1.0, (5, 5, 5, 9)), (0.0, (9,))])
def test_drafts_that_are_kept_are_said_to_be(rate: float, want: tuple[int, ...]) -> None:
    engine: Any = None
    made = Decoding(engine, engine, rate, time.perf_counter)
    plan: Any = SimpleNamespace(chunks=[SimpleNamespace(row=0, drafts=(5, 5, 5))])
    results = StepResults(step=1, sampled=(SampledTokens(0, (9,), accepted=0),))
    (one,) = made.judged(plan, results).sampled
    assert (one.tokens, one.accepted) == (want, len(want) - 1)
