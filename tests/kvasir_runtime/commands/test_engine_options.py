"""generate and chat take the engine's options as serve has them."""

import click
import pytest

from kvasir_runtime.commands import engine_options
from kvasir_runtime.offline.llm import OPTIONS


def test_options_are_those_of_serve_and_an_llm_takes_them():
    found = engine_options.options()
    assert {option.name for option in found} == engine_options.TAKEN
    assert engine_options.TAKEN <= OPTIONS


def test_values_are_checked_by_the_declaration():
    taken = engine_options.taken("m", {"max_model_len": 512, "temperature": 5, "revision": "v1"})
    assert (taken["max_model_len"], taken["revision"], taken["device"]) == (512, "v1", "auto")
    assert "temperature" not in taken
    assert "model" not in taken
    with pytest.raises(click.UsageError, match="hfOverrides is not JSON"):
        engine_options.taken("m", {"hf_overrides": "{"})
