"""`kvasir serve` with the stub engine: the same command, another child."""

import sys
from pathlib import Path

from kvasir_runtime.server import command

STUB = (sys.executable, str(Path(__file__).with_name("stub_engine.py")))

if __name__ == "__main__":
    command.main(engine_command=STUB)
