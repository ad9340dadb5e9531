"""Calls of functions and thoughts on every surface, through the official clients: there, back, streamed and whole."""

import json

import anthropic
import ollama
import openai
import pytest

from fakes.scripted import TOOL_TEMPLATE, scripted

ARGS = ("--max-model-len", "2048", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
BOTH = f"<think>\nlet me see\n</think>\n\nI look.\n{CALL}\n{OTHER}"
CUT = '<tool_call>\n{"name": "weather", "arguments": {"ci'
CHAT = [{"role": "user", "content": "how is it"}]

pytestmark = pytest.mark.xdist_group("server-tools")  # its process is shared by the tests of this file


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with scripted(tmp_path_factory.mktemp("tools"), *ARGS, chat_template=TOOL_TEMPLATE) as running:
        yield running


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def streamed(request):
    return request.param


@pytest.fixture
def responses(engine):
    with engine.server.strict_openai() as made:
        yield made.responses


@pytest.fixture
def messages(engine):
    with anthropic.Anthropic(
        base_url=engine.server.base_url.removesuffix("/v1"),
        api_key="none",
        max_retries=0,
        _strict_response_validation=True,
    ) as made:
        yield made.messages


@pytest.fixture
def ollamas(engine):
    made = ollama.Client(engine.server.base_url.removesuffix("/v1"))
    yield made
    made._client.close()


RESPONSES_TOOLS = [
    {"type": "function", "name": "weather", "description": "Tells it.", "parameters": SCHEMA, "strict": False},
    {"type": "function", "name": "clock", "parameters": {"type": "object", "properties": {}}, "strict": False},
]


class TestResponses:
    def ask(self, responses, streamed, text="how is it", **fields):
        fields = {"model": "tiny", "input": text, "tools": RESPONSES_TOOLS, **fields}
        if not streamed:
            return responses.create(**fields), []
        events = list(responses.create(**fields, stream=True))
        return events[-1].response, events

    def test_calls_and_thoughts_are_items(self, engine, responses, streamed):
        engine.says(BOTH)
        answer, events = self.ask(responses, streamed)
        thoughts, message, first, second = answer.output
        assert [item.type for item in answer.output] == ["reasoning", "message", "function_call", "function_call"]
        assert thoughts.content[0].text.strip() == "let me see"
        assert message.content[0].text.strip() == "I look."
        assert (first.name, json.loads(first.arguments), first.status) == ("weather", {"city": "Köln"}, "completed")
        assert (second.name, second.arguments) == ("clock", "{}")
        assert first.call_id != second.call_id
        assert answer.status == "completed"
        thought = engine.encoder.encode(BOTH.partition("</think>")[0]).ids
        blanks = len(thought) - answer.usage.output_tokens_details.reasoning_tokens
        assert 0 <= blanks < 3, "those before the tag are none"
        if streamed:
            kinds = [event.type.removeprefix("response.") for event in events]
            call = [
                "output_item.added",
                "function_call_arguments.delta",
                "function_call_arguments.done",
                "output_item.done",
            ]
            told = [kind for place, kind in enumerate(kinds) if place == 0 or kinds[place - 1] != kind]
            text = ["content_part.added", "output_text.delta", "output_text.done", "content_part.done"]
            thought = ["content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done"]
            assert told == [
                "created",
                "in_progress",
                *["output_item.added", *thought, "output_item.done"],
                *["output_item.added", *text, "output_item.done"],
                *call * 2,
                "completed",
            ]
            deltas = [event for event in events if event.type == "response.function_call_arguments.delta"]
            assert "".join(event.delta for event in deltas if event.item_id == first.id) == first.arguments

    def test_a_result_goes_back_by_id_or_by_items(self, engine, responses):
        engine.says(BOTH)
        first, _ = self.ask(responses, False)
        call = first.output[2]
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
        engine.says("It rains.")
        self.ask(responses, False, [result], previous_response_id=first.id)
        by_id = engine.prompt()
        assert f"<tool_call>{call.call_id} weather" in by_id
        assert "<think>" in by_id
        assert f"<|im_start|>tool\nrain for {call.call_id}<|im_end|>" in by_id
        sent = [item.model_dump(exclude_none=True) for item in first.output]
        self.ask(responses, False, [{"role": "user", "content": "how is it"}, *sent, result])
        assert engine.prompt() == by_id

    def test_a_call_that_is_cut_is_none(self, engine, responses, streamed):
        engine.says(CUT)
        answer, _ = self.ask(responses, streamed)
        if streamed:
            assert [(item.type, item.status) for item in answer.output] == [("function_call", "incomplete")]
        else:
            assert answer.output_text == CUT

    def test_which_tools_may_be_called(self, engine, responses):
        engine.says("x")
        self.ask(responses, False, tool_choice="none")
        assert engine.heard()["sampling"].get("grammar") is None
        assert '"weather"' in engine.prompt()
        for choice in (
            "required",
            {"type": "function", "name": "clock"},
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "clock"}]},
        ):
            self.ask(responses, False, tool_choice=choice)
            grammar = json.dumps(engine.heard()["sampling"]["grammar"])
            assert ("weather" in grammar) == (choice == "required")
        with pytest.raises(openai.BadRequestError) as caught:
            self.ask(responses, False, tool_choice={"type": "function", "name": "none"})
        assert caught.value.param == "tool_choice"

    def test_one_call_at_most_where_asked(self, engine, responses, streamed):
        engine.says(BOTH)
        answer, _ = self.ask(responses, streamed, parallel_tool_calls=False)
        assert [item.type for item in answer.output].count("function_call") == 1

    def test_the_form_of_the_text(self, engine, responses):
        engine.says("{}")
        form = {"type": "json_schema", "name": "place", "schema": SCHEMA, "strict": True}
        answer = responses.create(model="tiny", input="x", text={"format": form})
        assert "city" in json.dumps(engine.heard()["sampling"]["grammar"])
        assert answer.text.format.schema_ == SCHEMA
        responses.create(model="tiny", input="x", text={"format": {"type": "json_object"}})
        assert engine.heard()["sampling"]["grammar"] is not None

    @pytest.mark.parametrize(("effort", "shown"), [("none", "quiet"), ("high", "think")])
    def test_effort_switches_thoughts(self, engine, responses, effort, shown):
        engine.says("x")
        responses.create(model="tiny", input="x", reasoning={"effort": effort})
        assert engine.prompt().endswith(shown)


MESSAGES_TOOLS = [
    {"name": "weather", "description": "Tells it.", "input_schema": SCHEMA},
    {"name": "clock", "input_schema": {"type": "object", "properties": {}}},
]


class TestMessages:
    def ask(self, messages, streamed, chat=None, **fields):
        fields = {"model": "tiny", "messages": chat or CHAT, "max_tokens": 300, "tools": MESSAGES_TOOLS, **fields}
        if not streamed:
            return messages.create(**fields)
        with messages.stream(**fields) as stream:
            return stream.get_final_message()

    def test_calls_and_thoughts_are_blocks(self, engine, messages, streamed):
        engine.says(BOTH)
        answer = self.ask(messages, streamed)
        thoughts, text, first, second = answer.content
        assert [block.type for block in answer.content] == ["thinking", "text", "tool_use", "tool_use"]
        assert thoughts.thinking.strip() == "let me see"
        assert text.text.strip() == "I look."
        assert (first.name, first.input) == ("weather", {"city": "Köln"})
        assert (second.name, second.input) == ("clock", {})
        assert answer.stop_reason == "tool_use"
        assert 0 < answer.usage.output_tokens_details.thinking_tokens < answer.usage.output_tokens

    def test_results_go_back(self, engine, messages):
        engine.says(BOTH)
        first = self.ask(messages, False)
        call = first.content[2]
        engine.says("It rains.")
        result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "rain"}]}
        failed = {"type": "tool_result", "tool_use_id": first.content[3].id, "content": "late", "is_error": True}
        back = {"role": "user", "content": [result, failed, {"type": "text", "text": "and now?"}]}
        said = {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in first.content]}
        answer = self.ask(messages, False, [*CHAT, said, back])
        assert answer.stop_reason == "end_turn"
        prompt = engine.prompt()
        assert f"<tool_call>{call.id} weather" in prompt
        assert "let me see" in prompt
        assert f"<|im_start|>tool\nrain for {call.id}<|im_end|>" in prompt
        assert f"<|im_start|>tool\nError: late for {failed['tool_use_id']}<|im_end|>" in prompt
        assert "<|im_start|>user\nand now?<|im_end|>" in prompt
        counted = messages.count_tokens(model="tiny", messages=[*CHAT, said, back], tools=MESSAGES_TOOLS)
        assert counted.input_tokens == len(engine.heard()["prompt"])

    def test_which_tools_may_be_called(self, engine, messages):
        engine.says("x")
        self.ask(messages, False, tool_choice={"type": "none"})
        assert engine.heard()["sampling"].get("grammar") is None
        for choice in ({"type": "any"}, {"type": "tool", "name": "clock"}):
            self.ask(messages, False, tool_choice=choice)
            grammar = json.dumps(engine.heard()["sampling"]["grammar"])
            assert ("weather" in grammar) == (choice["type"] == "any")

    def test_one_call_at_most_where_asked(self, engine, messages, streamed):
        engine.says(BOTH)
        answer = self.ask(messages, streamed, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
        assert [block.type for block in answer.content].count("tool_use") == 1

    def test_thoughts_are_hidden_where_asked(self, engine, messages, streamed):
        engine.says(BOTH)
        answer = self.ask(
            messages,
            streamed,
            max_tokens=2000,
            thinking={"type": "enabled", "budget_tokens": 1024, "display": "omitted"},
        )
        assert (answer.content[0].type, answer.content[0].thinking) == ("thinking", "")
        assert engine.prompt().endswith("think")

    @pytest.mark.parametrize(
        ("thinking", "shown"), [({"type": "disabled"}, "quiet"), ({"type": "adaptive"}, "think"), (None, "\n")]
    )
    def test_thinking_switches_thoughts(self, engine, messages, thinking, shown):
        engine.says("x")
        self.ask(messages, False, **({"thinking": thinking} if thinking else {}))
        assert engine.prompt().endswith(shown)

    def test_the_form_of_the_text(self, engine, messages):
        engine.says("{}")
        form = {"format": {"type": "json_schema", "schema": SCHEMA}}
        messages.create(model="tiny", messages=CHAT, max_tokens=30, output_config=form)
        assert "city" in json.dumps(engine.heard()["sampling"]["grammar"])


OLLAMA_TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}},
]


class TestOllama:
    def ask(self, ollamas, streamed, chat=None, **fields):
        fields = {"model": "tiny", "messages": chat or CHAT, "tools": OLLAMA_TOOLS, **fields}
        if not streamed:
            return [ollamas.chat(**fields)]
        return list(ollamas.chat(**fields, stream=True))

    def test_calls_and_thoughts_are_fields(self, engine, ollamas, streamed):
        engine.says(BOTH)
        lines = self.ask(ollamas, streamed)
        assert "".join(line.message.content for line in lines).strip() == "I look."
        assert "".join(line.message.thinking or "" for line in lines).strip() == "let me see"
        first, second = [call.function for line in lines for call in line.message.tool_calls or ()]
        assert (first.name, first.arguments) == ("weather", {"city": "Köln"})
        assert (second.name, second.arguments) == ("clock", {})
        assert lines[-1].done_reason == "stop"

    def test_results_go_back_in_order(self, engine, ollamas):
        engine.says(BOTH)
        (first,) = self.ask(ollamas, False)
        results = [
            {"role": "tool", "tool_name": "clock", "content": "late"},
            {"role": "tool", "content": "rain"},
        ]
        engine.says("It rains.")
        self.ask(ollamas, False, [*CHAT, first.message, *results])
        prompt = engine.prompt()
        assert "<tool_call>call_1_0 weather" in prompt
        assert "<|im_start|>tool\nlate for call_1_1<|im_end|>" in prompt
        assert "<|im_start|>tool\nrain for call_1_0<|im_end|>" in prompt
        assert "let me see" in prompt

    def test_a_call_that_is_cut_is_text(self, engine, ollamas, streamed):
        engine.says(CUT)
        lines = self.ask(ollamas, streamed)
        assert "".join(line.message.content for line in lines) == CUT
        assert all(not line.message.tool_calls for line in lines)

    @pytest.mark.parametrize(("think", "shown"), [(True, "think"), (False, "quiet"), ("high", "think"), (None, "\n")])
    def test_think_switches_thoughts(self, engine, ollamas, think, shown):
        engine.says("x")
        self.ask(ollamas, False, think=think)
        assert engine.prompt().endswith(shown)
        ollamas.generate("tiny", "x", think=think)
        assert engine.prompt().endswith(shown)

    def test_it_says_what_it_can(self, ollamas):
        assert ollamas.show("tiny").capabilities == ["completion", "tools", "thinking"]


def test_efforts_that_a_model_does_not_know_are_ignored_except_high_which_is_the_default(tmp_path):
    with scripted(tmp_path, *ARGS) as engine:
        engine.says("x")
        body = {"model": "tiny", "messages": CHAT, "max_tokens": 9}

        def status(**fields):
            answer = engine.server.ask("/v1/messages", {**body, **fields})
            if answer.status == 200:
                return 200, answer.headers.get("x-kvasir-ignored-fields", "")
            return answer.status, answer.json["error"]["message"].partition(" ")[0]

        assert status(output_config={"effort": "high"}, thinking={"type": "adaptive"}) == (200, "")
        assert status(output_config={"effort": "low"}) == (200, "output_config.effort")
        assert status(thinking={"type": "disabled"}) == (400, "`thinking`")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "/v1/messages",
            {
                "messages": [{"role": "user", "content": [{"type": "text", "text": "a", "citations": None}]}],
                "tools": [{"name": "f", "description": None, "input_schema": {"type": "object"}, "type": None}],
                "max_tokens": 5,
                "system": None,
            },
        ),
        (
            "/v1/responses",
            {
                "input": [{"role": "user", "content": "a", "id": None, "status": None}],
                "text": {"format": None, "verbosity": None},
                "reasoning": {"effort": None, "summary": None},
                "tools": [{"type": "function", "name": "f", "description": None, "parameters": None, "strict": None}],
            },
        ),
        (
            "/api/chat",
            {
                "messages": [{"role": "user", "content": "a", "images": None, "tool_calls": None, "thinking": None}],
                "tools": [{"type": "function", "function": {"name": "f", "description": None}}],
                "options": {"temperature": None},
                "stream": False,
            },
        ),
    ],
)
def test_null_means_absent_at_every_depth(engine, path, body):
    engine.says("x")
    answer = engine.server.ask(path, {"model": "tiny", **body})
    assert answer.status == 200, answer.body
