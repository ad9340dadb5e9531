"""Bodies as real clients send them, and the fields that vLLM's clients use, on a real server.

What has no effect here is left out and named in the response's head; what a client waits for is in the answer.
"""

import asyncio
import json
import sys

import anthropic
import openai
import pytest

from fakes import checkpoints
from fakes.api_process import HERE, ApiProcess, api_process

LIMIT = 1 << 20
COMPLETION = {"prompt": "hello ", "max_tokens": 3}
CHAT_TURN = {"messages": [{"role": "user", "content": "hi"}]}
CHAT = CHAT_TURN | {"max_tokens": 3}
OLLAMA = CHAT_TURN | {"model": "tiny", "options": {"num_predict": 3}}
CACHED = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
TEMPLATE = (
    "{# <tool_call> <think> #}{% for t in tools or [] %}{{ t.function.name }};{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.reasoning_content }}{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
REAL = (sys.executable, "-m", "kvasir_runtime", "serve")
FUNCTION = {"name": "shell", "description": "run", "parameters": {"type": "object", "properties": {}}}

pytestmark = pytest.mark.xdist_group("server-clients")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = checkpoints.write(tmp_path_factory.mktemp("models") / "tiny")
    (made / "chat_template.jinja").write_text(TEMPLATE)
    return made


@pytest.fixture(scope="module")
def server(folder):
    options = ("--max-body-bytes", str(LIMIT), "--root-path", "/models/tiny/", "--kv-cache-tokens", "16384")
    with api_process(folder, *options, command=REAL) as running:
        yield running


def ignored(answer) -> set[str]:
    return set(filter(None, answer.headers.get("x-kvasir-ignored-fields", "").split(", ")))


CODEX = {
    "model": "tiny",
    "instructions": "You are a coding agent.",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin Patch"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"},
    ],
    "tools": [
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark"}},
        {"type": "web_search"},
        {"type": "function", "strict": False, **FUNCTION, "defer_loading": True},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "text": {"verbosity": "low"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "k",
    "client_metadata": {"session": "s"},
    "context_management": [{"type": "compaction"}],
    "max_output_tokens": 3,
}
CLAUDE_CODE = {
    "model": "tiny",
    "max_tokens": 3,
    "system": [{"type": "text", "text": "You are Claude Code.", **CACHED}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi", **CACHED}]},
        {
            "role": "assistant",
            "content": [{"type": "redacted_thinking", "data": "abc"}, {"type": "text", "text": "hello"}],
        },
        {"role": "user", "content": "more"},
    ],
    "tools": [
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
        {"name": "Bash", "input_schema": {"type": "object"}, **CACHED, "defer_loading": True},
    ],
    "metadata": {"user_id": "u"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "betas": ["context-management-2025-06-27"],
}
OPENROUTER = CHAT | {
    "provider": {"order": ["a"]},
    "usage": {"include": True},
    "transforms": ["middle-out"],
    "plugins": [],
    "verbosity": "low",
}
LITELLM = {
    "max_tokens": 3,
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi", **CACHED}], **CACHED},
        {
            "role": "assistant",
            "content": "a",
            "reasoning_content": "t",
            "thinking_blocks": [{"type": "thinking", "thinking": "t"}],
            "provider_specific_fields": {"x": 1},
        },
        {"role": "user", "content": "go on"},
    ],
    "tools": [{"type": "function", "function": FUNCTION, **CACHED}],
}

UNLOGGED = ("/tokenize", "/v1/responses/input_tokens", "/v1/messages/count_tokens")


@pytest.mark.parametrize(
    ("path", "body", "want"),
    [
        (
            "/v1/responses",
            CODEX,
            {"client_metadata", "context_management", "include.reasoning.encrypted_content", "input[2]"}
            | {
                "reasoning.effort",
                "reasoning.summary",
                "text.verbosity",
                "tools[0]",
                "tools[0].defer_loading",
                "tools[1]",
            },
        ),
        (
            "/v1/messages",
            CLAUDE_CODE,
            {"betas", "context_management", "messages.redacted_thinking", "tools[0]", "tools[0].defer_loading"},
        ),
        ("/v1/chat/completions", OPENROUTER, {"plugins", "provider", "transforms", "usage", "verbosity"}),
        (
            "/v1/chat/completions",
            LITELLM,
            {"messages[0].cache_control", "messages[1].provider_specific_fields", "messages[1].thinking_blocks"}
            | {"tools[0].cache_control"},
        ),
        ("/v1/chat/completions", CHAT | {"reasoning_effort": "low"}, {"reasoning_effort"}),
        ("/v1/responses/input_tokens", {"input": "hi", "reasoning": {"effort": "low"}}, {"reasoning.effort"}),
        ("/v1/messages/count_tokens", CHAT_TURN | {"output_config": {"effort": "max"}}, {"output_config.effort"}),
        ("/api/chat", OLLAMA | {"think": "low"}, {"think"}),
        ("/v1/completions", COMPLETION | {"max_token": 5}, {"max_token"}),
        ("/tokenize", {"prompt": "a", "colour": 1}, {"colour"}),
    ],
    ids=[
        "codex",
        "claude-code",
        "openrouter",
        "litellm",
        "effort",
        "effort-of-a-response",
        "effort-of-a-message",
        "think",
        "misspelt",
        "tokenize",
    ],
)
def test_bodies_of_real_clients_are_served_and_what_has_no_effect_is_named(server: ApiProcess, path, body, want):
    answer = server.ask(path, body)
    assert answer.status == 200, answer.body
    assert ignored(answer) == want
    if want and path not in UNLOGGED:
        server.until("the log names them", lambda: min(want) in server.output())


def test_a_client_cannot_write_into_the_head_or_the_log(server: ApiProcess):
    answer = server.ask("/v1/completions", COMPLETION | {"a\r\nset-cookie: x": 1, "é" * 500: 2})
    assert answer.status == 200
    assert ignored(answer) == {"a??set-cookie??x", "?" * 64}
    assert "set-cookie: x" not in server.output()


def test_a_strict_server_refuses_what_has_no_effect(tmp_path):
    folder = checkpoints.write(tmp_path / "tiny")
    command = (sys.executable, str(HERE / "serve_fake.py"))
    with api_process(folder, "--strict-fields", command=command) as strict:
        answer = strict.ask("/v1/completions", COMPLETION | {"max_token": 5})
        assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "unknown_parameter", "max_token")
        answer = strict.ask("/v1/responses", {"input": "hi", "reasoning": {"effort": "medium"}})
        assert answer.status == 400
        assert (answer.error["code"], answer.error["param"]) == ("unsupported_parameter", "reasoning.effort")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_the_model_may_be_left_out_or_be_the_path(server: ApiProcess, folder, path):
    body = {
        "/v1/completions": COMPLETION,
        "/v1/chat/completions": CHAT,
        "/v1/responses": {"input": "hi", "max_output_tokens": 3},
        "/v1/messages": CHAT,
    }[path]
    assert server.ask(path, body).json["model"] == "tiny"
    served = server.ask(path, body | {"model": str(folder)})
    assert (served.status, served.json["model"]) == (200, str(folder))
    assert server.ask(path, body | {"model": "other"}).status == 404


def test_a_prefix_of_a_proxy_is_taken_off(server: ApiProcess):
    assert server.ask("/models/tiny/v1/completions", COMPLETION).status == 200
    assert server.ask("/models/tiny/health").status == 200
    assert server.ask("/models/tinyv1/completions", COMPLETION).status == 404
    assert server.ask("/openapi.json").json["servers"] == [{"url": "/models/tiny"}]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (CHAT, "chat.completion"),
        (COMPLETION, "text_completion"),
        ({"input": "a"}, "list"),
        ({"text_1": "a", "text_2": ["a", "b"]}, "This model gives no scores."),
        ({"queries": "a", "documents": ["a", "b"]}, "This model gives no scores."),
        ({"query": "a", "documents": ["a", "b"]}, "This model gives no scores."),
    ],
)
def test_invocations_finds_the_api_by_the_body(server: ApiProcess, body, kind):
    answer = server.ask("/invocations", body)
    found = answer.json["object"] if answer.status == 200 else answer.error["message"]
    assert found.startswith(kind)


def test_invocations_without_a_known_field_is_refused(server: ApiProcess):
    assert server.ask("/invocations", {"model": "tiny"}).error["code"] == "missing_required_parameter"


def test_tokenizer_info_has_the_template_and_the_length(server: ApiProcess):
    found = server.ask("/tokenizer_info").json
    assert found["chat_template"] == TEMPLATE
    assert found["model_max_length"] == 4096
    assert found["tokenizer_class"]


def test_keys_that_are_null_elsewhere_are_present(server: ApiProcess):
    chat = server.ask("/v1/chat/completions", CHAT).json
    assert [chat[name] for name in ("prompt_logprobs", "prompt_token_ids")] == [None, None]
    (choice,) = chat["choices"]
    assert [choice[name] for name in ("stop_reason", "token_ids", "logprobs")] == [None, None, None]
    assert choice["message"]["reasoning"] is None
    (choice,) = server.ask("/v1/completions", COMPLETION).json["choices"]
    absent = ("stop_reason", "token_ids", "logprobs", "prompt_logprobs", "prompt_token_ids")
    assert [choice[name] for name in absent] == [None] * 5


def test_the_reason_of_a_stop_is_its_string_or_its_id(server: ApiProcess):
    body = COMPLETION | {"max_tokens": 8, "temperature": 0}
    whole = server.ask("/v1/completions", body | {"return_token_ids": True}).json["choices"][0]
    stopped = server.ask("/v1/completions", body | {"stop_token_ids": whole["token_ids"][2:3]})
    assert stopped.json["choices"][0]["stop_reason"] == whole["token_ids"][2]
    letter = next(character for character in whole["text"] if character.isalnum())
    stopped = server.ask("/v1/completions", body | {"stop": letter}).json["choices"][0]
    assert (stopped["finish_reason"], stopped["stop_reason"]) == ("stop", letter)


def test_every_chunk_counts_where_it_is_asked_to(server: ApiProcess):
    with server.strict_openai() as client:
        options = {"include_usage": True, "continuous_usage_stats": True}
        chunks = list(
            client.chat.completions.create(
                model="tiny",
                messages=CHAT["messages"],
                max_tokens=40,
                stream=True,
                stream_options=options,
                extra_body={"ignore_eos": True},
            )
        )
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 40
    assert counts[0] == 0, "the role alone"
    assert all(chunk.usage.prompt_tokens == chunks[-1].usage.prompt_tokens for chunk in chunks)


@pytest.mark.parametrize("stream", [False, True])
def test_times_of_a_request_come_where_they_are_requested(server: ApiProcess, stream):
    body = COMPLETION | {"include_metrics": True, "ignore_eos": True}
    answer = server.ask("/v1/completions", body | {"stream": stream})
    found = json.loads(answer.body.split(b"data: ")[-2]) if stream else answer.json
    times = found["metrics"]
    assert set(times) == {
        *("time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms", "tokens_per_second")
    }
    assert times["time_to_first_token_ms"] > 0
    assert "metrics" not in server.ask("/v1/completions", COMPLETION).json
    assert "metrics" not in server.ask("/v1/completions", body | {"n": 2}).json


def test_a_chat_may_repeat_the_message_that_it_continues(server: ApiProcess):
    body = CHAT | {"messages": [*CHAT["messages"], {"role": "assistant", "content": "So "}]}
    body |= {"continue_final_message": True, "temperature": 0}
    plain = server.ask("/v1/chat/completions", body).json["choices"][0]["message"]["content"]
    echoed = server.ask("/v1/chat/completions", body | {"echo": True, "logprobs": True}).json["choices"][0]
    assert echoed["message"]["content"] == "So " + plain
    assert len(echoed["logprobs"]["content"]) == 3
    stream = server.ask("/v1/chat/completions", body | {"echo": True, "stream": True}).body
    pieces = [json.loads(event)["choices"] for event in stream.split(b"data: ")[1:-1]]
    assert "".join(piece[0]["delta"].get("content", "") for piece in pieces) == "So " + plain


def test_128_choices_and_hot_temperatures_are_served(server: ApiProcess):
    answer = server.ask("/v1/completions", COMPLETION | {"n": 128, "temperature": 1e300, "max_tokens": 1}).json
    assert len(answer["choices"]) == 128
    assert len({choice["text"] for choice in answer["choices"]}) > 1


def test_a_schema_may_stand_beside_the_type(server: ApiProcess):
    schema = {"enum": ["yes"]}
    for kind in ("json_object", "json_schema"):
        body = COMPLETION | {"max_tokens": 8, "response_format": {"type": kind, "schema": schema}}
        assert server.ask("/v1/completions", body).json["choices"][0]["text"] == '"yes"'


@pytest.mark.parametrize("size", [LIMIT + 1, 8 * LIMIT])
def test_a_body_that_is_too_large_is_answered_and_not_reset(server: ApiProcess, size):
    """Closing a connection with unread bytes resets it, and an asynchronous client never sees the response."""

    async def ask() -> int:
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
            try:
                await client.completions.create(model="tiny", prompt="x" * size)
            except openai.APIStatusError as error:
                return error.status_code
        return 200

    async def asked() -> list[int]:
        return list(await asyncio.gather(*(ask() for _ in range(24))))

    assert asyncio.run(asked()) == [413] * 24


def test_anthropics_client_sees_the_error_of_a_body_that_is_too_large(server: ApiProcess):
    client = anthropic.Anthropic(base_url=server.base_url.removesuffix("/v1"), api_key="k", max_retries=0)
    with client, pytest.raises(anthropic.APIStatusError) as caught:
        client.messages.create(model="tiny", max_tokens=1, messages=[{"role": "user", "content": "x" * (LIMIT + 1)}])
    assert caught.value.status_code == 413


def test_rejections_are_counted_by_their_code(server: ApiProcess):
    server.ask("/v1/completions", COMPLETION | {"model": "other"})
    text = server.ask("/metrics").body.decode()
    assert 'kvasir_requests_rejected_total{code="model_not_found",model_name="tiny"}' in text
    assert "vllm:request_num_preemptions_bucket" in text
