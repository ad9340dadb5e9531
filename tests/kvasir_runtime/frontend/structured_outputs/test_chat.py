"""What the grammars of chats accept: the form behind thoughts, and calls beside it."""

import json

import pytest

from fakes import checkpoints
from kvasir_runtime.frontend.parsing.answer_parser import Parsing
from kvasir_runtime.frontend.parsing.formats import HARMONY
from kvasir_runtime.frontend.protocol import generation
from kvasir_runtime.frontend.structured_outputs import chat
from kvasir_runtime.guide import validate, vocabulary

FORMS = {
    "schema": {"guided_json": {"const": 12}},
    "object": {"response_format": {"type": "json_object"}},
    "regex": {"guided_regex": "1{1,2}2?"},
    "choice": {"guided_choice": ["12", "x"]},
    "grammar": {"guided_grammar": 'root ::= "1" [0-9]'},
    "tag": {"structured_outputs": {"structural_tag": {"format": {"type": "const_string", "value": "12"}}}},
}
CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
FINAL = "<|channel|>final<|message|>12"
PLACES = {
    "no thoughts": (
        {"tools": "hermes", "reasoning": "", "prompt": "assistant:"},
        ["12", CALL],
        ["", "hm 12", "12 " + CALL],
    ),
    "may think": (
        {"tools": "hermes", "reasoning": "qwen3", "prompt": "assistant:"},
        ["12", "<think>hm 5</think>\n\n12", CALL, "<think>hm</think>\n\n" + CALL],
        ["hm 12", "<think>12"],
    ),
    "thinks": (
        {"tools": "hermes", "reasoning": "qwen3", "prompt": "assistant: <think>\n"},
        ["hm 5</think>\n\n12", "hm</think>\n\n" + CALL],
        ["12", "hm</think>hm"],
    ),
    "always thinks": ({"tools": "", "reasoning": "deepseek_r1", "prompt": "assistant:"}, ["hm</think>12"], ["12"]),
    "channels": (
        {"tools": "", "reasoning": HARMONY, "prompt": "<|start|>assistant"},
        [FINAL, "<|channel|>analysis<|message|>hm<|end|><|start|>assistant" + FINAL],
        ["12"],
    ),
}


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    checkpoints.write_tokenizer(folder)
    return vocabulary.load(folder, 320, (0,))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("form", FORMS)
def test_what_an_answer_may_be(words, place, form):
    written, right, wrong = PLACES[place]
    offered = {"f": {}} if written["tools"] else {}
    parsing = Parsing(**written, offered=offered)
    fields = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **FORMS[form]}
    if offered:
        fields["tools"] = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    asked = chat.asked_of(generation.parse_chat(json.dumps(fields).encode()), parsing)
    found = validate.verdict(asked.grammar, words)
    assert found.error == ""
    for texts, accepted in ((right, True), (wrong, False)):
        for text in texts:
            text = text.replace("12", '{"a": 1}') if form == "object" else text
            matcher, tokens = words.matcher(found.grammar), words.tokenizer.tokenize_str(text)
            whole = matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
            assert whole == accepted, text
