"""Calls as GLM, Kimi, MiniMax and Granite write them, through a real server to the client, whole and streamed."""

import pytest

from fakes.outputs import CALLS, FUNCTIONS, TWO
from fakes.scripted import TOOL_TEMPLATE, scripted

FORMATS = ("glm45", "glm47", "kimi_k2", "minimax", "minimax_m2", "granite")
TOOLS = [{"type": "function", "function": {"name": name, "parameters": one}} for name, one in FUNCTIONS.items()]
ASKED = {"model": "tiny", "messages": [{"role": "user", "content": "plan"}], "tools": TOOLS}

pytestmark = pytest.mark.xdist_group("server-tool-formats")


@pytest.mark.parametrize("written", FORMATS)
def test_calls_of_a_format_reach_the_client(written, tmp_path):
    text, content = next((text, content) for name, text, content, calls in CALLS if (name, calls) == (written, TWO))
    with (
        scripted(tmp_path, "--tool-call-parser", written, chat_template=TOOL_TEMPLATE) as engine,
        engine.server.strict_openai() as client,
    ):
        engine.says(text)
        (choice,) = client.chat.completions.create(**ASKED).choices
        calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls]
        assert (choice.finish_reason, choice.message.content or "", calls) == ("tool_calls", content, TWO)

        pieces = [chunk.choices[0] for chunk in client.chat.completions.create(**ASKED, stream=True)]
        joined = {}
        for call in (call for piece in pieces for call in piece.delta.tool_calls or ()):
            name, arguments = joined.get(call.index, (call.function.name, ""))
            joined[call.index] = (name, arguments + (call.function.arguments or ""))
        assert "".join(piece.delta.content or "" for piece in pieces) == content
        assert [joined[index] for index in sorted(joined)] == TWO
        assert pieces[-1].finish_reason == "tool_calls"
