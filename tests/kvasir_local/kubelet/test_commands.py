"""Programs that answer at once."""

import pytest

from kvasir_local.errors import StepFailedError
from kvasir_local.kubelet import commands


def test_what_a_command_prints_is_returned_and_a_failure_is_named():
    assert commands.output(["printf", "a b"]) == "a b"
    assert commands.output(["sh", "-c", "printf $X"], {"X": "seen"}) == "seen"
    with pytest.raises(StepFailedError, match=r"sh -c .* failed: no such image"):
        commands.output(["sh", "-c", "echo no such image >&2; exit 1"])


def test_an_exit_code_is_an_answer():
    assert commands.answer(["false"]).returncode == 1
