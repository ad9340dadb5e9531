"""The shape of errors and their advice, the same from every edge."""

import json

import pytest

from kvasir_api import openai_errors


@pytest.mark.parametrize(
    ("error", "status", "kind", "code", "headers"),
    [
        (openai_errors.invalid("x", param="n"), 400, "invalid_request_error", None, {"x-should-retry": "false"}),
        (openai_errors.unauthorized(), 401, "authentication_error", "invalid_api_key", {"www-authenticate": "Bearer"}),
        (openai_errors.model_not_found("m"), 404, "invalid_request_error", "model_not_found", {}),
        (openai_errors.no_route("GET", "/x"), 404, "invalid_request_error", "not_found", {}),
        (openai_errors.method_not_allowed("GET", "/x"), 405, "invalid_request_error", "method_not_allowed", {}),
        (openai_errors.body_too_large(5), 413, "invalid_request_error", "body_too_large", {"x-should-retry": "false"}),
        (openai_errors.overloaded("x", retry_after_s=2.2), 429, "rate_limit_error", "overloaded", {"retry-after": "3"}),
        (
            openai_errors.unavailable("x", retry_after_s=0),
            503,
            "service_unavailable_error",
            "unavailable",
            {"retry-after": "1"},
        ),
        (openai_errors.aborted(), 499, "invalid_request_error", "request_aborted", {"x-should-retry": "false"}),
        (openai_errors.internal(), 500, "server_error", "internal_error", {}),
    ],
)
def test_each_case(error, status, kind, code, headers):
    found_status, body, found = openai_errors.response(error)
    document = json.loads(body)
    assert set(document) == {"error"}
    assert set(document["error"]) == {"message", "type", "param", "code"}
    assert (found_status, document["error"]["type"], document["error"]["code"]) == (status, kind, code)
    assert found["content-length"] == str(len(body))
    assert headers.items() <= found.items()
    assert ("retry-after" in found) + (found.get("x-should-retry") == "false") == (status != 500)


def test_a_long_context_says_all_numbers():
    message = openai_errors.context_length(limit=64, prompt_tokens=60, max_tokens=5).message
    assert all(number in message for number in ("64", "65", "60", "5"))
    for asked in (5, (1 << 31) - 1):  # Ollama's clients request no length, which is the largest one
        message = openai_errors.context_length(limit=64, prompt_tokens=70, max_tokens=asked, at_least=True).message
        assert message.endswith(
            "the prompt has at least 70 tokens and leaves no room for an answer. Reduce the prompt."
        )
    alone = openai_errors.context_length(limit=64, prompt_tokens=70, max_tokens=0)
    assert alone.param == "prompt"
    assert "70" in alone.message


def test_a_clients_text_is_quoted_in_part_and_printable():
    assert openai_errors.quoted("a\n\x1b[31m" + "x" * 500) == "`a??[31m" + "x" * 92 + "…`"
