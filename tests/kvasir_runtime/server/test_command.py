"""`kvasir serve` starts the engine process first of all, and leaves none behind where it does not come to serve."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvasir_runtime.server.command import serve

IDLE = (sys.executable, "-c", "input()")
NO_ENGINE = ("/no/such/engine",)
FIRST = """
import sys
from kvasir_runtime.server import command
try:
    command.serve.main(["model"], obj=("/no/such/engine",))
except FileNotFoundError:
    print(*{"pydantic", "kvasir_api.options", "torch"}.intersection(sys.modules), "none of them")
"""


def children() -> list[str]:
    """Processes that the tests' thread has started and not waited for."""
    return Path(f"/proc/{os.getpid()}/task/{threading.get_native_id()}/children").read_text().split()


def test_engine_process_is_started_before_options_are_imported():
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, check=True)
    assert done.stdout == "none of them\n"


def test_help_starts_no_engine():
    result = CliRunner().invoke(serve, ["--help"], obj=NO_ENGINE)
    assert result.exit_code == 0
    assert "--max-model-len" in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["model", "--max-model-length", "5"], "No such option '--max-model-length'"),
        (["model", "--max-batch-tokens", "8", "--block-size", "16"], "maxBatchTokens 8 is less than blockSize 16"),
        ([], "Missing argument 'MODEL'"),
    ],
)
def test_engine_of_a_command_with_a_wrong_option_ends(arguments, words):
    before = children()
    result = CliRunner().invoke(serve, arguments, obj=IDLE)
    assert result.exit_code == 2
    assert words in result.output
    assert children() == before
