"""`kvasir serve` with the real engine process on a fake runner: everything but the model's arithmetic."""

import sys

from kvasir_runtime.server import command

ENGINE = (sys.executable, "-m", "fakes.engine_process")

if __name__ == "__main__":
    command.main(engine_command=ENGINE)
