"""Every field of a request: taken and effective, harmless, or refused by name."""

import json

import pytest
from openai.types import completion_create_params as completion_params
from openai.types.chat import completion_create_params as chat_params

from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.protocol import generation, ignored_fields
from kvasir_runtime.frontend.protocol.validation import ReceivedBody

COMPLETION = {"model": "m", "prompt": "hi"}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TOOL = {"type": "function", "function": {"name": "f"}}


def refusal(parse, document):
    raw = document if isinstance(document, bytes) else json.dumps(document).encode()
    with pytest.raises(Refused) as caught:
        parse(ReceivedBody(raw, strict=True))
    return caught.value.error


@pytest.mark.parametrize(
    ("prompt", "want"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        (["a", [1]], ["a", [1]]),
        ("", [""]),
    ],
)
def test_forms_of_a_prompt(prompt, want):
    assert generation.parse_completion(json.dumps({"model": "m", "prompt": prompt}).encode()).prompt == want


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"prompt": []}, "prompt", "must be a string"),
        ({"prompt": [[]]}, "prompt", "must be a string"),
        ({"prompt": [1, "a"]}, "prompt", "must be a string"),
        ({"prompt": [True]}, "prompt", "must be a string"),
        ({"prompt": {"a": 1}}, "prompt", "must be a string"),
        ({"prompt": [-1]}, "prompt", "negative"),
        ({"prompt": [10**30]}, "prompt", "too large"),
        ({"prompt": ["a"] * 129}, "prompt", "at most 128"),
        ({"prompt": None}, "prompt", "Missing"),
        ({"model": 5}, "model", "string"),
        ({"model": "m" * 600}, "model", "512"),
        ({"n": 0}, "n", "greater"),
        ({"n": 129}, "n", "128"),
        ({"n": 10**40}, "n", "Invalid"),
        ({"n": "2"}, "n", "integer"),
        ({"prompt": ["a"] * 128, "n": 3}, "n", "256"),
        ({"max_tokens": -1}, "max_tokens", "greater"),
        ({"max_tokens": 1.0}, "max_tokens", "integer"),
        ({"max_tokens": True}, "max_tokens", "integer"),
        ({"min_tokens": -1}, "min_tokens", "greater"),
        ({"temperature": -0.1}, "temperature", "greater"),
        ({"temperature": "1"}, "temperature", "number"),
        ({"top_p": 1.5}, "top_p", "less"),
        ({"top_k": -2}, "top_k", "greater"),
        ({"min_p": 2}, "min_p", "less"),
        ({"seed": 1 << 63}, "seed", "Invalid"),
        ({"stop": ""}, "stop", "non-empty"),
        ({"stop": ["a", 1]}, "stop", "non-empty"),
        ({"stop": ["a"] * 17}, "stop", "at most 16"),
        ({"stop": "x" * 513}, "stop", "512"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]", "greater"),
        ({"stop_token_ids": [1] * 129}, "stop_token_ids", "128"),
        ({"stream": "yes"}, "stream", "boolean"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage", "boolean"),
        ({"stream_options": {"speed": 1}}, "stream_options.speed", "Unrecognized"),
        ({"max_token": 5}, "max_token", "Unrecognized"),
        ({"logprobs": 21}, "logprobs", "20"),
        ({"logprobs": True}, "logprobs", "integer"),
        ({"prompt_logprobs": -2}, "prompt_logprobs", "greater"),
        ({"logprob_token_ids": [1] * 1025}, "logprob_token_ids", "1024"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "streamed"),
        ({"max_tokens": 0}, "max_tokens", "echo"),
        ({"echo": 1}, "echo", "boolean"),
        ({"suffix": "x"}, "suffix", "not supported"),
        ({"best_of": 2, "n": 3}, "best_of", "less than n 3"),
        ({"best_of": 2, "stream": True}, "best_of", "streamed"),
        ({"best_of": 16, "prompt": ["a"] * 17}, "n", "256"),
        ({"frequency_penalty": 2.1}, "frequency_penalty", "less"),
        ({"presence_penalty": -3}, "presence_penalty", "greater"),
        ({"repetition_penalty": 0}, "repetition_penalty", "greater"),
        ({"logit_bias": {"5": 1, "x": 1, "-1": 1}}, "logit_bias", "has `x`, `-1` where token ids are expected"),
        ({"logit_bias": {"5": 101}}, "logit_bias", "-100 to 100"),
        ({"logit_bias": {"5": True}}, "logit_bias", "-100 to 100"),
        ({"logit_bias": [5]}, "logit_bias", "object"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias", "too large"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", "1024"),
        ({"bad_words": "x"}, "bad_words", "list"),
        ({"bad_words": [" "]}, "bad_words", "list of words"),
        ({"bad_words": ["x"] * 129}, "bad_words", "128"),
        ({"bad_words": ["x" * 513]}, "bad_words", "512"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids[0]", "greater"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "no prompt"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "greater"),
        ({"use_beam_search": 1}, "use_beam_search", "boolean"),
        ({"length_penalty": 2.0}, "length_penalty", "needs use_beam_search"),
        ({"early_stopping": True}, "early_stopping", "needs use_beam_search"),
        ({"early_stopping": "soon", "use_beam_search": True}, "early_stopping", "Invalid"),
        ({"length_penalty": 11, "use_beam_search": True}, "length_penalty", "less"),
        ({"temperature": 0.7, "use_beam_search": True}, "temperature", "no effect on a beam search"),
        ({"stop": "x", "use_beam_search": True}, "stop", "no effect on a beam search"),
        ({"logit_bias": {"5": 1}, "use_beam_search": True}, "logit_bias", "no effect on a beam search"),
        ({"n": 129, "use_beam_search": True}, "n", "less"),
    ],
)
def test_refusals_name_the_field(fields, param, says):
    error = refusal(generation.parse_completion, COMPLETION | fields)
    assert (error.status, error.param) == (400, param)
    assert says in error.message
    assert error.type == "invalid_request_error"


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": "hi"}, "messages", "list"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "Missing"),
        ({"messages": [{"role": "<|im_end|>", "content": "x"}]}, "messages[0].role", "pattern"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "string"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [1]}]}, "messages[0]", "only the role assistant"),
        ({"messages": [{"role": "user", "content": "x", "tool_call_id": "a"}]}, "messages[0]", "only the role tool"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]}, "messages[0].tool_calls[0].function", "M"),
        ({"messages": [{"role": "tool", "tool_call_id": "a"}]}, "messages[0].content", "Missing"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content", "image_url"),
        ({"messages": ["x"]}, "messages[0]", "Invalid"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "Missing"),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type", "function"),
        ({"tools": [{**TOOL, "function": {"name": "a b"}}]}, "tools[0].function.name", "pattern"),
        ({"tools": [TOOL, TOOL]}, "tools", "twice"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice", "must be"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice", '"g"'),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls", "boolean"),
        ({"include_reasoning": "no"}, "include_reasoning", "boolean"),
        ({"logprobs": 1}, "logprobs", "boolean"),
        ({"max_tokens": 0}, "max_tokens", "greater"),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs", "20"),
        ({"best_of": 2}, "best_of", "needs use_beam_search"),
        ({"echo": 1}, "echo", "boolean"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message", "exclude"),
        (
            {"continue_final_message": True, "messages": [{"role": "user", "content": " "}]},
            "continue_final_message",
            "with a text",
        ),
        ({"response_format": {"type": "xml"}}, "response_format", "one of text, json_object"),
        ({"store": True}, "store", "no effect"),
        ({"chat_template": "x"}, "chat_template", "not supported"),
        ({"chat_template_kwargs": {"messages": "x"}}, "chat_template_kwargs", "may not set"),
        ({"chat_template_kwargs": {"x": [1]}}, "chat_template_kwargs", "short"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens", "differ"),
        ({"reasoning_effort": "much"}, "reasoning_effort", "Invalid"),
        ({"prompt": "x"}, "prompt", "Unrecognized"),
    ],
)
def test_refusals_of_a_chat_name_the_field(fields, param, says):
    error = refusal(generation.parse_chat, CHAT | fields)
    assert (error.status, error.param) == (400, param)
    assert says in error.message


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"x"',
        b"\xff\xfe",
        b'{"model":"m","prompt":"\\ud800"}',
        b'{"model":"m","prompt":"x","temperature":NaN}',
        b'{"model":"m","prompt":"x","temperature":Infinity}',
        b"[" * 100_000,
        b'{"a":' * 60_000,
        b'{"model":"m","prompt":"x"} trailing',
    ],
)
def test_what_is_not_a_json_object_is_said(raw):
    assert refusal(generation.parse_completion, raw).code == "invalid_json"


def test_a_number_beyond_all_floats_is_refused():
    assert (
        refusal(generation.parse_completion, b'{"model":"m","prompt":"x","temperature":1e999}').param == "temperature"
    )


@pytest.mark.parametrize("table", [ignored_fields.COMPLETION, ignored_fields.CHAT], ids=["completion", "chat"])
def test_null_means_absent_for_every_field(table):
    parse, least = (
        (generation.parse_completion, COMPLETION)
        if table is ignored_fields.COMPLETION
        else (generation.parse_chat, CHAT)
    )
    model = generation.CompletionBody if table is ignored_fields.COMPLETION else generation.ChatBody
    nulls = dict.fromkeys([*table, *ignored_fields.LABELS, *model.model_fields])
    assert parse(json.dumps(nulls | least).encode()) == parse(json.dumps(least).encode())


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "u", "metadata": {"a": "b"}, "safety_identifier": "x", "prompt_cache_key": "k"},
        {"presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "logit_bias": {}},
        {"tools": [], "parallel_tool_calls": True, "include_reasoning": True},
        {"response_format": {"type": "text"}, "store": False, "service_tier": "auto"},
        {"logprobs": False, "top_logprobs": 0},
        {"modalities": ["text"]},
    ],
)
def test_values_without_effect_are_taken(fields):
    assert generation.parse_chat(json.dumps(CHAT | fields).encode()) == generation.parse_chat(json.dumps(CHAT).encode())


@pytest.mark.parametrize(
    ("params", "model", "table"),
    [
        (completion_params.CompletionCreateParamsBase, generation.CompletionBody, ignored_fields.COMPLETION),
        (chat_params.CompletionCreateParamsBase, generation.ChatBody, ignored_fields.CHAT),
    ],
    ids=["completion", "chat"],
)
def test_every_field_of_the_openai_client_is_known(params, model, table):
    fields = set(params.__annotations__) | {"stream"}
    assert fields - set(model.model_fields) - set(table) - ignored_fields.LABELS == set()
    assert not set(model.model_fields) & (set(table) | ignored_fields.LABELS), "a field that works is also refused"


def test_text_parts_are_joined_and_empty_fields_of_history_dropped():
    history = {"role": "assistant", "content": "ok", "refusal": None, "tool_calls": None, "annotations": []}
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = generation.parse_chat(
        json.dumps({"model": "m", "messages": [history, {"role": "user", "content": parts}]}).encode()
    )
    assert [message.content for message in body.messages] == ["ok", "ab"]


def test_a_clients_text_in_an_error_is_bounded():
    error = refusal(generation.parse_completion, COMPLETION | {"x" * 10_000: 1})
    assert len(error.message) < 300
    assert error.param is not None
    assert len(error.param) <= 200
