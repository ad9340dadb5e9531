"""The page about the API names every field and every error code that the code knows."""

import re
from pathlib import Path

import pytest

from kvasir_runtime.server import bodies, known, tokens
from kvasir_runtime.server.surfaces.messages import body as messages
from kvasir_runtime.server.surfaces.responses import body as responses

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "api.md").read_text()
NAMED = set(re.findall(r"`([a-z_.0-9]+)`", PAGE))


def test_every_field_is_on_the_page():
    fields = {*bodies.CompletionBody.model_fields, *bodies.ChatBody.model_fields, *known.LABELS}
    fields |= {*known.COMPLETION, *known.CHAT, *known.TOKENIZE}
    fields |= {*tokens.TokenizeBody.model_fields, *tokens.DetokenizeBody.model_fields}
    assert fields - NAMED - {"stream_options"} == set()


@pytest.mark.parametrize(
    ("title", "fields"),
    [
        ("Responses", {*responses.ResponsesBody.model_fields, *responses.HARMLESS, *responses.LABELS}),
        ("Anthropic's messages", {*messages.MessagesBody.model_fields, *messages.HARMLESS, *messages.LABELS}),
    ],
)
def test_every_field_of_a_surface_is_in_its_section(title, fields):
    section = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    assert fields - set(re.findall(r"`([a-z_.0-9]+)`", section)) == set()


def test_every_error_code_is_on_the_page():
    sources = [ROOT / "crds/kvasir_api/openai_errors.py", *(ROOT / "runtime/kvasir_runtime/server").rglob("*.py")]
    codes = {code for path in sources for code in re.findall(r'code(?:: str)? ?= ?"(\w+)"', path.read_text())}
    assert len(codes) > 12
    assert codes - NAMED - {"unavailable"} == set()
