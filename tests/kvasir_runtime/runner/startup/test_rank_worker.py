"""How a rank behind the first begins to compute."""

import gc
from dataclasses import replace
from pathlib import Path

import pytest

from fakes import checkpoints
from fakes.checkpoints import Shape
from fakes.ranks import group_of
from kvasir_api.options import ServeOptions
from kvasir_runtime.engine_reports import Progress
from kvasir_runtime.kernels.reference import REFERENCE
from kvasir_runtime.runner.startup import placement, rank_worker


class ItComputesError(Exception):
    """Raised in place of computing for ever."""


def test_collections_do_not_look_at_what_was_loaded(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path / "m", Shape())
    fields = {"device": "cpu", "dtype": "float32", "kv_cache_tokens": 1024, "tensor_parallel_size": 2}
    options = ServeOptions.model_validate({"model": str(folder), **fields})

    def on_progress(progress: Progress) -> None:
        if progress.computes:
            raise ItComputesError

    before = gc.get_freeze_count()
    with group_of(2) as group:
        ops = replace(REFERENCE, collectives=group[1])
        with pytest.raises(ItComputesError):
            rank_worker.compute(options, folder, placement.choose_device("cpu"), ops, 1, on_progress)
    assert gc.get_freeze_count() > before + 10_000
