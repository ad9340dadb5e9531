"""Named chat templates and the option over real HTTP: which one a chat takes, and what clients are told."""

import json

import pytest

from fakes.checkpoints import CHAT_TEMPLATE
from fakes.scripted import TOOL_TEMPLATE, scripted

NAMED = [{"name": "default", "template": CHAT_TEMPLATE}, {"name": "tool_use", "template": TOOL_TEMPLATE}]
SETTINGS = {"eos_token": "<|endoftext|>", "chat_template": NAMED}
CHAT = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def test_chats_with_tools_take_the_template_for_them(tmp_path):
    with scripted(tmp_path, files={"tokenizer_config.json": json.dumps(SETTINGS)}) as engine:
        engine.says("Hello.")
        with engine.server.strict_openai() as client:
            client.chat.completions.create(model="tiny", messages=CHAT)
            assert engine.prompt() == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
            assert engine.heard()["sampling"]["stop_token_ids"] == [2], "where the template ends a message"
            engine.says('<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>')
            answer = client.chat.completions.create(model="tiny", messages=CHAT, tools=[TOOL])
        assert engine.prompt().startswith("<|im_start|>tools\n")
        assert answer.choices[0].message.tool_calls[0].function.name == "look"
        assert "tools" in engine.server.ask("/api/show", {"model": "tiny"}).json["capabilities"]


def test_roles_are_the_templates_to_know(tmp_path):
    checked = CHAT_TEMPLATE.replace(
        "{% for m in messages %}",
        "{% for m in messages %}{% if m.role == 'robot' %}{{ raise_exception('no robots') }}{% endif %}",
    )
    with scripted(tmp_path, chat_template=checked) as engine:
        engine.says("Hello.")
        turn = {"role": "ipython", "content": "4"}
        assert engine.server.ask("/v1/chat/completions", {"messages": [*CHAT, turn]}).status == 200
        assert "<|im_start|>ipython\n4<|im_end|>" in engine.prompt()
        refused = engine.server.ask("/v1/chat/completions", {"messages": [{"role": "robot", "content": "4"}]})
        assert (refused.status, refused.error["code"]) == (400, "chat_template_error")
        assert "no robots" in refused.error["message"]


@pytest.mark.parametrize(
    ("option", "want"), [("tool_use", "<|im_start|>user\nhi<|im_end|>"), ("<{{ messages[0].content }}>", "<hi>")]
)
def test_the_option_replaces_the_checkpoints_templates(tmp_path, option, want):
    files = {"tokenizer_config.json": json.dumps(SETTINGS)}
    with scripted(tmp_path, "--chat-template", option, files=files) as engine:
        engine.says("Hello.")
        engine.server.ask("/v1/chat/completions", {"model": "tiny", "messages": CHAT})
        assert engine.prompt().startswith(want)
