"""What the grammars of chats accept: the form behind thoughts, and calls beside it."""

import json

import pytest

from fakes import checkpoints
from kvasir_runtime.frontend import output_format
from kvasir_runtime.frontend.parsing.formats import HARMONY, ParserNames
from kvasir_runtime.frontend.protocol import generation
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
        (ParserNames("hermes", ""), "assistant:"),
        ["12", CALL],
        ["", "hm 12", "12 " + CALL],
    ),
    "may think": (
        (ParserNames("hermes", "qwen3"), "assistant:"),
        ["12", "<think>hm 5</think>\n\n12", CALL, "<think>hm</think>\n\n" + CALL],
        ["hm 12", "<think>12"],
    ),
    "thinks": (
        (ParserNames("hermes", "qwen3"), "assistant: <think>\n"),
        ["hm 5</think>\n\n12", "hm</think>\n\n" + CALL],
        ["12", "hm</think>hm"],
    ),
    "always thinks": ((ParserNames("", "deepseek_r1"), "assistant:"), ["hm</think>12"], ["12"]),
    "channels": (
        (ParserNames("", HARMONY), "<|start|>assistant"),
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
    (parsers, prompt), right, wrong = PLACES[place]
    fields = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **FORMS[form]}
    if parsers.tools:
        fields["tools"] = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    output = output_format.of_chat(generation.parse_chat(json.dumps(fields).encode()), parsers, prompt)
    found = validate.verdict(output.grammar, words)
    assert found.error == ""
    for texts, accepted in ((right, True), (wrong, False)):
        for text in texts:
            text = text.replace("12", '{"a": 1}') if form == "object" else text
            matcher, tokens = words.matcher(found.grammar), words.tokenizer.tokenize_str(text)
            whole = matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
            assert whole == accepted, text


@pytest.mark.parametrize(
    ("choice", "once", "forced"),
    [
        ("auto", False, False),
        ("required", False, True),
        ({"type": "function", "function": {"name": "f"}}, True, True),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [{"type": "function", "name": "f"}]},
            },
            False,
            True,
        ),
    ],
)
def test_a_named_function_is_called_once(words, choice, once, forced):
    """Its grammar ends with the first call; that of the others takes a second one."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    fields = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": tools, "tool_choice": choice}
    body = generation.parse_chat(json.dumps(fields).encode())
    output = output_format.of_chat(body, ParserNames("hermes", ""), "assistant:")
    assert (output.parser.single, output.parser.forced) == (once, forced)
    if forced:
        matcher = words.matcher(validate.verdict(output.grammar, words).grammar)
        tokens = words.tokenizer.tokenize_str(f"{CALL}\n{CALL}")
        assert (matcher.try_consume_tokens(tokens) == len(tokens)) == (not once)
