"""Thoughts are separated from answers, however both are cut."""

import pytest

from fakes.outputs import CALLS, parsing, parts
from kvasir_runtime.frontend.parsing import formats
from kvasir_runtime.frontend.parsing.parts import join, merged

CALL = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
CASES = [
    ("qwen3", "", "<think>\nHm, ö.\n</think>\n\nYes.", "Hm, ö.", "Yes."),
    ("qwen3", "x<think>\n", "Hm.\n</think>\n\nYes.", "Hm.", "Yes."),
    ("qwen3", "x<think>\n\n</think>\n\n", "Yes <think> no", "", "Yes <think> no"),
    ("qwen3", "", "Yes. </think>", "", "Yes. </think>"),
    ("qwen3", "", " <thin", "", " <thin"),
    ("qwen3", "", "<think>\nHm </thi", "Hm </thi", ""),
    ("qwen3", "", "<think>\n\n</think>\n\nYes.\n", "", "Yes.\n"),
    ("qwen3", "<think>", "", "", ""),
    ("deepseek_r1", "", "\nHm.\n</think>\nYes.", "Hm.", "Yes."),
    ("deepseek_r1", "", "<think>Hm.</think>Yes.", "Hm.", "Yes."),
    ("deepseek_r1", "", "Hm", "Hm", ""),
    ("deepseek_r1", "<｜Assistant｜></think>", "Yes.", "", "Yes."),
    ("mistral", "", "[THINK]Hm[/THINK]Yes.", "Hm", "Yes."),
    ("granite", "", "Here is my thought process: Hm. Here's my response: Yes.", "Hm.", "Yes."),
    (
        "gpt_oss",
        "",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
        "Hm.",
        "Yes.",
    ),
    ("gpt_oss", "<|start|>assistant<|channel|>analysis<|message|>", "Hm.<|end|>", "Hm.", ""),
    ("gpt_oss", "<|start|>assistant", "<|channel|>final <|constrain|>json<|message|>{}<|return|>", "", "{}"),
]


@pytest.mark.parametrize(("tags", "prompt", "text", "reasoning", "content"), CASES)
def test_thoughts_and_answer(tags, prompt, text, reasoning, content):
    asked = parsing("", reasoning=tags, prompt=prompt)
    found = join(parts(asked, [text]))
    assert (found.reasoning, found.content) == (reasoning, content)
    assert merged(parts(asked, list(text))) == merged(parts(asked, [text]))
    for place in range(len(text)):
        assert merged(parts(asked, [text[:place], text[place:]])) == merged(parts(asked, [text])), place


def test_calls_come_after_thoughts_and_are_not_looked_for_in_them():
    text = f"<think>\nI could {CALL}\n</think>\n\n{CALL}"
    asked = parsing("hermes", reasoning="qwen3")
    for place in range(len(text)):
        found = join(parts(asked, [text[:place], text[place:]]))
        assert (found.reasoning, found.content) == (f"I could {CALL}", "")
        assert [call.name for call in found.calls] == ["clock"]


def test_channels_hold_thoughts_and_calls():
    thoughts = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    text = thoughts + next(text for written, text, *_ in CALLS if written == "gpt_oss")
    found = join(parts(parsing("gpt_oss", reasoning="gpt_oss"), list(text)))
    assert (found.reasoning, found.content, len(found.calls)) == ("Hm.", "I look.", 2)


@pytest.mark.parametrize("tags", ["qwen3", "gpt_oss"])
def test_thoughts_may_be_left_out(tags):
    text = next(text for name, _, text, *_ in CASES if name == tags)
    if tags == "gpt_oss":
        text = CASES[-3][2]
    found = join(parts(parsing("", reasoning=tags, shown=False), list(text)))
    assert (found.reasoning, found.content) == ("", "Yes.")


@pytest.mark.parametrize(
    ("template", "want"),
    [
        ("{{ '<think>' }}", "qwen3"),
        ("<｜Assistant｜>{{ content.split('</think>') }}", "deepseek_r1"),
        ("[THINK]", "mistral"),
        ("<|channel|><|message|>", "gpt_oss"),
        ("plain", ""),
    ],
)
def test_a_template_tells_the_tags(template, want):
    assert formats.parser_names(template, "none", "auto").reasoning == want
