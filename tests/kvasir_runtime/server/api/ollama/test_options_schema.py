"""The schema of Ollama's options says what their reader takes, also of what is unknown or requests nothing."""

from typing import Any

import jsonschema
import pytest
from pydantic import TypeAdapter, ValidationError

from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.server.api.ollama.options import OllamaOptions, known

SCHEMA = OllamaOptions.model_json_schema()


def taken(value: dict[str, Any]) -> bool:
    try:
        TypeAdapter(OllamaOptions).validate_python(known(value))
    except (Refused, ValidationError):
        return False
    return True


@pytest.mark.parametrize(
    ("value", "fine"),
    [
        ({}, True),
        ({"temperature": 0.5}, True),
        ({"temperature": 9}, False),
        ({"unknown": None}, True),
        ({"unknown": 1}, False),
        ({"num_gpu": 3}, True),
        ({"typical_p": 1}, True),
        ({"typical_p": 0.5}, False),
        ({"typical_p": None}, True),
        ({"penalize_newline": True}, True),
        ({"penalize_newline": 1}, False),
        ({"logits_all": 0}, False),
        ({"typical_p": True}, False),
        ({"typical_p": 1.0}, True),
        ({"mirostat_eta": 0.1}, True),
    ],
)
def test_schema_and_reader_agree(value: dict[str, Any], fine: bool) -> None:
    assert taken(value) is fine
    assert jsonschema.Draft202012Validator(SCHEMA).is_valid(value) is fine
