"""The real engine process with a fake runner: python -m fakes.engine_process, as kvasir_runtime.engine_main.

The name of the model says what happens: `broken` cannot be loaded, `crash` fails while loading, `slow` reports progress
twenty times, `poison` fails every step, `ecc` does so as a device would that is broken, `endless` never draws an end,
`paced` takes time for each step and does not either; any other works.
"""

import sys
import time
from collections.abc import Callable

from fakes.model import FakeModel
from fakes.runner import FakeRunner
from kvasir_api.options import ServeOptions
from kvasir_runtime import engine_main
from kvasir_runtime.core.plan import StepResults
from kvasir_runtime.engine_reports import Progress
from kvasir_runtime.errors import ModelError

ENDLESS = tuple(range(3, 61))
"""Without the special tokens of a tiny checkpoint: neither the end of a sequence nor that of a message is drawn."""


class PacedRunner(FakeRunner):
    """A step takes 50 ms and half of one for each token."""

    def collect(self, handle: StepResults) -> StepResults:
        """In order of launch."""
        time.sleep(0.050 + 0.0005 * self.launched[-self.in_flight].num_tokens)
        return super().collect(handle)


def build(options: ServeOptions, progress: Callable[[Progress], None]) -> FakeRunner:
    """Takes what the options say of the cache; max_model_len 256 unless given."""
    name = options.model.rstrip("/").rsplit("/", 1)[-1]
    if name == "broken":
        raise ModelError("model broken: config.json is missing")
    if name == "crash":
        raise RuntimeError("something nobody\nexpected")
    for percent in range(0, 100, 5):
        progress(Progress(phase="loading", progress_fraction=percent / 100))
        time.sleep(0.01 if name == "slow" else 0)
    endless = name in ("endless", "paced")
    return (PacedRunner if name == "paced" else FakeRunner)(
        model=FakeModel(table=ENDLESS, loses=False) if endless else FakeModel(loses=False),
        num_blocks=(options.kv_cache_tokens or 4096) // options.block_size,
        block_size=options.block_size,
        vector_size=8,
        max_model_len=options.max_model_len or 256,
        max_rows=options.max_sequences,
        max_batch_tokens=options.max_batch_tokens or 512,
        fail_steps=frozenset(range(1000)) if name in ("poison", "ecc") else frozenset(),
        fail_words="CUDA error: uncorrectable ECC error encountered" if name == "ecc" else "",
    )


if __name__ == "__main__":
    sys.exit(engine_main.main(build))
