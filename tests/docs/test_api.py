"""The page about the API names every field and every error code that the code knows."""

import re
from pathlib import Path
from typing import get_args

import pytest

from kvasir_api.answer_formats import ReasoningParser, ToolCallParser
from kvasir_runtime.frontend.parsing import formats
from kvasir_runtime.frontend.pooling import protocol as pooled
from kvasir_runtime.frontend.protocol import generation, ignored_fields
from kvasir_runtime.server.api.anthropic import protocol as messages
from kvasir_runtime.server.api.ollama import options
from kvasir_runtime.server.api.ollama import protocol as ollama
from kvasir_runtime.server.api.openai import tokenize
from kvasir_runtime.server.api.responses import protocol as responses

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "api.md").read_text()
NAMED = set(re.findall(r"`([a-z_.0-9]+)`", PAGE))


def test_every_field_is_on_the_page():
    fields = {*generation.CompletionBody.model_fields, *generation.ChatBody.model_fields, *ignored_fields.LABELS}
    fields |= {*ignored_fields.COMPLETION, *ignored_fields.CHAT, *ignored_fields.TOKENIZE}
    fields |= {*tokenize.TokenizeBody.model_fields, *tokenize.DetokenizeBody.model_fields}
    assert fields - NAMED - {"stream_options"} == set()


def test_every_field_of_a_body_that_is_pooled_is_on_its_page():
    page = (ROOT / "docs" / "embeddings.md").read_text()
    kinds = (pooled.EmbeddingBody, pooled.RerankBody, pooled.ScoreBody)
    fields = {field for kind in kinds for field in kind.model_fields}
    assert fields | {*pooled.HARMLESS} <= set(re.findall(r"`([a-z_0-9]+)`", page))


def test_every_row_of_the_table_of_fields_is_a_field():
    table = PAGE.split("## Fields of a request\n")[1].split("\nTaken without effect")[0]
    first = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = {name.split(".")[0] for cell in first for name in re.findall(r"`([a-z_.]+)`", cell)}
    assert len(named) > 40
    assert named - {*generation.CompletionBody.model_fields, *generation.ChatBody.model_fields} == set()


@pytest.mark.parametrize(
    ("title", "fields"),
    [
        ("Responses", {*responses.ResponsesBody.model_fields, *responses.HARMLESS, *responses.LABELS}),
        (
            "Ollama",
            {
                *ollama.ChatRequest.model_fields,
                *ollama.GenerateRequest.model_fields,
                *ollama.GENERATE_HARMLESS,
                *ollama.LABELS,
                *options.OllamaOptions.model_fields,
                *options.LOADING,
                *options.HARMLESS,
            },
        ),
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


def test_the_page_about_tools_has_the_tables_of_the_formats():
    page = (ROOT / "docs" / "tools.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \|", page, re.MULTILINE)
    tools = [(name, tools.models) for name, tools in formats.TOOLS.items()]
    tags = [(name, tags.models) for name, tags in formats.REASONING.items()]
    both = (formats.HARMONY, "gpt-oss")
    assert rows == [*tools, both, *tags, both]
    for of in formats.REASONING.values():
        assert f"`{of.begin[0]}`" in page
        assert f"`{of.end[0]}`" in page


def test_every_format_can_be_chosen():
    assert set(get_args(ToolCallParser)) == {"auto", "none", formats.HARMONY, *formats.TOOLS}
    assert set(get_args(ReasoningParser)) == {"auto", "none", formats.HARMONY, *formats.REASONING}
