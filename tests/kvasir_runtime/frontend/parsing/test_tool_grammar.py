"""What may be written where calls are required is nothing but valid calls: random answers under it are parsed."""

import json
import random

import jsonschema
import numpy as np
import pytest
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from fakes import tiny_tokenizer
from fakes.outputs import FUNCTIONS, joined
from kvasir_runtime.frontend.parsing import formats, harmony, tool_grammar
from kvasir_runtime.frontend.parsing.answer_parser import ParserConfig
from kvasir_runtime.guide import grammars, validate, vocabulary

SPECIALS = [*harmony.MARKS, "[TOOL_CALLS]", "[ARGS]"]
ENDINGS = set('"}]),>\n')
SCHEMAS = {
    **FUNCTIONS,
    "deep": {
        "type": "object",
        "properties": {
            "unit": {"type": "string", "enum": ["c", "f"]},
            "places": {"type": "array", "items": {"$ref": "#/$defs/place"}, "maxItems": 2},
            "place": {"$ref": "#/$defs/place"},
        },
        "required": ["unit", "place"],
        "additionalProperties": False,
        "$defs": {
            "place": {
                "type": "object",
                "properties": {"lat": {"type": "number", "minimum": -9, "maximum": 9}},
                "required": ["lat"],
                "additionalProperties": False,
            }
        },
    },
    "optional": {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}, "b": {"type": "boolean"}},
        "additionalProperties": False,
    },
}
SCHEMAS["weather"] = {**SCHEMAS["weather"], "additionalProperties": False}
SCHEMAS["clock"] = {**SCHEMAS["clock"], "additionalProperties": False}
NAMES = [*formats.TOOLS, formats.HARMONY]


@pytest.fixture(scope="module")
def guide(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    encoder = tiny_tokenizer.byte_level()
    encoder = type(encoder).from_str(encoder.to_str())
    encoder.add_special_tokens(SPECIALS)
    encoder.save(str(folder / "tokenizer.json"))
    return vocabulary.load(folder, encoder.get_vocab_size(), [1]), encoder


def written(guide, grammar, seed, begun=""):
    """A random answer that ends as soon as it may, with a taste for what closes."""
    vocab, encoder = guide
    verdict = validate.verdict(grammar, vocab)
    assert verdict.error == "", verdict.error
    matcher = vocab.matcher(verdict.grammar)
    chance = random.Random(seed)
    mask = allocate_token_bitmask(1, vocab.tokenizer.vocab_size)
    ids = list(encoder.encode(begun).ids)
    assert matcher.consume_tokens(ids)
    tags = [encoder.encode(tag).ids for tag in ("\n</parameter>\n", "</parameter>\n", "</arg_value>\n", "</arg_value>")]
    while len(ids) < 4000 and not matcher.is_stopped():
        if len(ids) % 20 == 19:
            tag = chance.choice([tag for tag in tags if matcher.validate_tokens(tag) == len(tag)] or [[]])
            assert matcher.consume_tokens(tag)
            ids += tag
        if matcher.is_accepting() and chance.random() < 0.4:
            break
        fill_next_token_bitmask(matcher, mask, 0)
        assert not matcher.is_error(), matcher.get_error()
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8)[0], bitorder="little"))
        allowed = [token for token in allowed.tolist() if token != 1]
        if not allowed:
            break
        closing = [token for token in allowed if set(encoder.decode([token], skip_special_tokens=False)) & ENDINGS]
        ids.append(chance.choice(closing if closing and chance.random() < 0.5 else allowed))
        assert matcher.consume_token(ids[-1])
    return encoder.decode(ids, skip_special_tokens=False)


def asked(name, **fields):
    return ParserConfig(tools=name, offered=SCHEMAS, **fields)


def check(found, names=SCHEMAS):
    assert found.calls
    assert found.content == ""
    for call in found.calls:
        assert call.name in names
        jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(4))
def test_required_calls_are_valid_and_alone(guide, name, seed):
    grammar = tool_grammar.required(asked(name))
    check(joined(asked(name), [written(guide, grammar, seed)]))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("function", list(SCHEMAS))
def test_a_named_function_is_the_one_that_is_called(guide, name, function):
    one = ParserConfig(tools=name, offered={function: SCHEMAS[function]}, single=True)
    grammar = tool_grammar.required(one)
    found = joined(one, [written(guide, grammar, 7)])
    check(found, {function})
    assert len(found.calls) == 1


@pytest.mark.parametrize(
    ("tags", "prompt", "begun"),
    [
        ("qwen3", "", "<think>\nHm"),
        ("qwen3", "<think>\n", "Hm"),
        ("qwen3", "<think>\n\n</think>\n\n", ""),
        ("deepseek_r1", "", "Hm"),
        ("granite", "", "Here is my thought process: Hm"),
    ],
)
def test_thoughts_may_come_before_a_required_call(guide, tags, prompt, begun):
    one = asked("hermes", reasoning=tags, prompt=prompt, single=True)
    end = formats.REASONING[tags].end[0] if begun else ""
    text = written(guide, tool_grammar.required(one), 3, begun + end)
    found = joined(one, [text])
    assert found.reasoning == begun.removeprefix("<think>\n").removeprefix("Here is my thought process: ")
    check(found)


def test_channels_may_analyse_before_a_required_call(guide):
    one = asked("gpt_oss", reasoning="gpt_oss")
    begun = "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant"
    found = joined(one, [written(guide, tool_grammar.required(one), 5, begun)])
    assert found.reasoning == "Hm"
    check(found)


SPOKEN = "<|channel|>commentary<|message|>So.<|end|><|start|>assistant"
STARTS = {
    "hermes": '<tool_call>\n{"name": "deep", "arguments": {',
    "mistral": "[TOOL_CALLS]deep[ARGS]{",
    "mistral_v3": '[TOOL_CALLS] [{"name": "deep", "arguments": {',
    "qwen3_coder": "<tool_call>\n<function=deep>\n",
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>deep\n```json\n{",
    "deepseek_v31": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>deep<｜tool▁sep｜>{",
    "pythonic": "[deep(unit=",
    "glm45": "<tool_call>deep\n",
    "glm47": "<tool_call>deep",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.deep:0",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="deep">\n',
    "minimax": '<tool_calls>\n{"name": "deep", "arguments": {',
    "granite": '<|tool_call|>[{"name": "deep", "arguments": {',
    "llama3_json": '{"name": "deep", "parameters": {',
    "gpt_oss": "<|channel|>commentary to=functions.deep <|constrain|>json<|message|>{",
}


@pytest.mark.parametrize("name", NAMES)
def test_strict_arguments_fit_their_schema_where_the_model_calls(guide, name):
    one = asked(name)
    grammar = tool_grammar.strict(one, {"deep"})
    lead = {"pythonic": "", "llama3_json": "", "gpt_oss": SPOKEN}.get(name, "So. ")
    text = written(guide, grammar, 11, lead + STARTS[name])
    call = joined(one, [text]).calls[0]
    assert call.name == "deep"
    jsonschema.validate(json.loads(call.arguments), SCHEMAS["deep"])


@pytest.mark.parametrize("name", ["hermes", "mistral", "llama3_json"])
def test_a_strict_function_leaves_texts_alone(guide, name):
    grammar = tool_grammar.strict(ParserConfig(tools=name, offered={"deep": SCHEMAS["deep"]}), {"deep"})
    vocab, encoder = guide
    matcher = vocab.matcher(validate.verdict(grammar, vocab).grammar)
    assert matcher.consume_tokens(encoder.encode('Any text, {"a": 1} too.\n').ids)
    assert matcher.is_accepting()


def test_the_grammar_is_small_text_for_the_engine(guide):
    vocab, _ = guide
    made = grammars.rewritten(tool_grammar.required(asked("hermes")), vocab.specials)
    assert made.kind == "lark"
    assert len(made.text) < 20_000
