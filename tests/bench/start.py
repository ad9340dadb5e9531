"""How long `kvasir serve` takes from its start until it is ready: `make bench-start`.

Each shape is started several times with one startup cache and its file in the page cache: the first start measures what
the next ones find, as on a node that has served the model. Seconds are from the start of the process to the first 200
of /readyz; load and warm are what the engine measured of them.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from bench.shapes import SHAPES, written
from fakes.api_process import api_process
from fakes.checkpoints import write

REAL: Final = ("-m", "kvasir_runtime", "serve")


def main() -> None:
    """One line of JSON for each start."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="*", default=["tiny", "small"], choices=["tiny", *SHAPES])
    parser.add_argument("--starts", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvasir-bench-start-") as home:
        for shape in options.shapes:
            model = write(Path(home) / "tiny") if shape == "tiny" else written(Path(home) / shape, SHAPES[shape])
            for number in range(options.starts):
                print(json.dumps({"shape": shape, "start": number, **started(model, Path(home) / "cache")}), flush=True)


def started(model: Path, cache: Path) -> dict[str, float]:
    """Seconds until ready, and of them what the engine measured."""

    began = time.monotonic()
    arguments = ("--device", "cpu", "--startup-cache", str(cache), "--kv-cache-tokens", "4096")
    with api_process(model, *arguments, command=(sys.executable, *REAL)) as server:
        ready_s = time.monotonic() - began
        start = server.state()["start"]
    return {"ready_s": round(ready_s, 2), "load_s": round(start["load_s"], 2), "warm_s": round(start["warm_s"], 2)}


if __name__ == "__main__":
    main()
