"""Answers as models write them, made for the tests of parsers: by format, and what is in them.

FUNCTIONS are what every request of these tests offers.
"""

from typing import Any, Final

from kvasir_runtime.frontend.parsing.answer_parser import AnswerParser, ParserConfig
from kvasir_runtime.frontend.parsing.parts import JoinedAnswer, Part, join

FUNCTIONS: Final[dict[str, dict[str, Any]]] = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "wind": {"type": "boolean"},
            "at": {"type": "object", "properties": {"lat": {"type": "number"}}},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["city"],
    },
    "clock": {"type": "object", "properties": {}},
}
TWO: Final = [("weather", '{"city": "Köln", "days": 2}'), ("clock", "{}")]
DEEP: Final = [("weather", '{"city": "a \\"b\\" </tool_call>", "at": {"lat": -1.5}, "tags": ["x", "y"], "wind": true}')]
LINES: Final = [("weather", '{"city": "\\nK\\n"}')]

Case = tuple[str, str, str, list[tuple[str, str]]]
CALLS: Final[list[Case]] = [
    (
        "hermes",
        (
            'I look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Köln", "days": 2}}\n</tool_call>\n'
            '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
        ),
        "I look.",
        TWO,
    ),
    (
        "hermes",
        (
            '<tool_call>{"arguments":{"city":"a \\"b\\" </tool_call>","at":{"lat":-1.5},"tags":["x","y"],"wind":true},'
            '"name":"weather","id":7}</tool_call>'
        ),
        "",
        DEEP,
    ),
    ("hermes", '<tool_call>\n{"name": "clock"}', "", TWO[1:]),
    ("hermes", '<tool_call>\n{"name": "clock", "arguments": null}\n</tool_', "", TWO[1:]),
    (
        "hermes",
        '<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"K\\"}"}',
        "",
        [("weather", '{"city": "K"}')],
    ),
    (
        "llama3_json",
        '{"name": "weather", "parameters": {"city": "Köln", "days": 2}}; {"name": "clock", "parameters": {}}',
        "",
        TWO,
    ),
    ("llama3_json", '<|python_tag|>{"type": "function", "name": "clock", "parameters": {}}', "", TWO[1:]),
    ("pythonic", '[weather(city="Köln", days=2), clock()]', "", TWO),
    (
        "pythonic",
        (
            '<|python_start|>[weather(city=\'a "b" </tool_call>\', at={"lat": -1.5}, tags=["x", \'y\'], wind=True)]'
            "<|python_end|>"
        ),
        "",
        DEEP,
    ),
    (
        "mistral_v3",
        (
            '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Köln", "days": 2}}, '
            '{"name": "clock", "arguments": {}}]'
        ),
        "",
        TWO,
    ),
    ("mistral", '[TOOL_CALLS]weather[ARGS]{"city": "Köln", "days": 2}[TOOL_CALLS]clock[ARGS]{}', "", TWO),
    ("mistral", '[TOOL_CALLS]weather{"city": "Köln", "days": 2}[TOOL_CALLS]clock[CALL_ID]aB3[ARGS]{}', "", TWO),
    ("mistral", 'Yes. [TOOL_CALLS] [{"name": "clock", "arguments": {}}]', "Yes.", TWO[1:]),
    (
        "qwen3_coder",
        (
            "I look.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nKöln\n</parameter>\n<parameter=days>\n2\n"
            "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=clock>\n</function>\n</tool_call>"
        ),
        "I look.",
        TWO,
    ),
    (
        "qwen3_coder",
        (
            '<function=weather><parameter=city>a "b" </tool_call></parameter><parameter=at>{"lat": -1.5}</parameter>'
            "<parameter=tags>['x', 'y']</parameter><parameter=wind>True</parameter></function>"
        ),
        "",
        DEEP,
    ),
    (
        "deepseek_v3",
        (
            "So.\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
            '{"city": "Köln", "days": 2}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>clock\n'
            "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ),
        "So.",
        TWO,
    ),
    (
        "deepseek_v31",
        (
            '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Köln", "days": 2}'
            "<｜tool▁call▁end｜><｜tool▁call▁begin｜>clock<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ),
        "",
        TWO,
    ),
    (
        "glm45",
        (
            "I look.\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Köln</arg_value>\n"
            "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n<tool_call>clock\n</tool_call>"
        ),
        "I look.",
        TWO,
    ),
    (
        "glm45",
        (
            '<tool_call>weather<arg_key>city</arg_key><arg_value>a "b" </tool_call></arg_value><arg_key>at</arg_key>'
            '<arg_value>{"lat": -1.5}</arg_value><arg_key>tags</arg_key><arg_value>["x", "y"]</arg_value>'
            "<arg_key>wind</arg_key><arg_value>true</arg_value></tool_call>"
        ),
        "",
        DEEP,
    ),
    (
        "glm47",
        (
            "I look.<tool_call>weather<arg_key>city</arg_key><arg_value>Köln</arg_value><arg_key>days</arg_key>"
            "<arg_value>2</arg_value></tool_call><tool_call>clock</tool_call>"
        ),
        "I look.",
        TWO,
    ),
    (
        "glm47",
        '<tool_call>weather<arg_key>tags</arg_key><arg_value>["</arg_value>"]</arg_value></tool_call>',
        "",
        [("weather", '{"tags": ["</arg_value>"]}')],
    ),
    ("glm47", "<tool_call>weather<arg_key>city</arg_key><arg_value>\nK\n</arg_value></tool_call>", "", LINES),
    (
        "kimi_k2",
        (
            "I look. <|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0 <|tool_call_argument_begin|>"
            '{"city": "Köln", "days": 2}<|tool_call_end|><|tool_call_begin|>functions.clock:1'
            "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
        ),
        "I look.",
        TWO,
    ),
    (
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>clock:12<|tool_call_argument_begin|>{}",
        "",
        TWO[1:],
    ),
    (
        "minimax_m2",
        (
            'I look.\n<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Köln</parameter>\n'
            '<parameter name="days">2</parameter>\n</invoke>\n<invoke name="clock">\n</invoke>\n</minimax:tool_call>'
        ),
        "I look.",
        TWO,
    ),
    (
        "minimax_m2",
        (
            '<minimax:tool_call><invoke name="weather"><parameter name="city">a "b" </tool_call></parameter>'
            '<parameter name="at">{"lat": -1.5}</parameter><parameter name="tags">["x", "y"]</parameter>'
            '<parameter name="wind">true</parameter></invoke></minimax:tool_call>'
        ),
        "",
        DEEP,
    ),
    (
        "minimax",
        (
            'I look.\n<tool_calls>\n{"name": "weather", "arguments": {"city": "Köln", "days": 2}}\n'
            '{"name": "clock", "arguments": {}}\n</tool_calls>'
        ),
        "I look.",
        TWO,
    ),
    ("minimax", '<tool_calls>\n{"name": "clock", "arguments": {}}', "", TWO[1:]),
    (
        "granite",
        (
            'I look. <|tool_call|> [{"arguments": {"city": "Köln", "days": 2}, "name": "weather"}, '
            '{"name": "clock", "arguments": {}}]'
        ),
        "I look.",
        TWO,
    ),
    ("granite", '<tool_call>[{"name": "clock", "arguments": {}}]', "", TWO[1:]),
    (
        "gpt_oss",
        (
            "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.weather"
            ' <|constrain|>json<|message|>{"city": "Köln", "days": 2}<|call|><|start|>assistant to=functions.clock'
            "<|channel|>commentary json<|message|>{}"
        ),
        "I look.",
        TWO,
    ),
    ("gpt_oss", "<|channel|>commentary to=functions.clock<|message|><|call|>", "", TWO[1:]),
]
"""Format, answer, its content, its calls."""

LEFT: Final = [
    ("hermes", "a < b and <tool_calls, or <tool"),
    ("hermes", ' <tool_call>{"name": "rm", "arguments": {}}</tool_call> '),
    ("hermes", "<tool_call>no JSON</tool_call>"),
    ("hermes", 'so <tool_call> <tool_call>{"name": "weather", "name": "clock"}'),
    ("hermes", '<tool_call>{"arguments": {"city": 1}}'),
    ("llama3_json", '{"name": "rm", "parameters": {}}'),
    ("llama3_json", '{"answer": [1, 2, {"a": null}], "b": 1e5}'),
    ("llama3_json", '<|python_tag|>brave.call(query="x")'),
    ("pythonic", "[1] is a reference"),
    ("pythonic", "[see(this)]"),
    ("mistral", "[TOOL_CALLS]rm[ARGS]{}"),
    ("mistral_v3", "[TOOL_CALLS]weather[ARGS]{}"),
    ("qwen3_coder", "<tool_call>\n<function=rm>\n</function>\n</tool_call>"),
    ("qwen3_coder", "if a <function=weather"),
    ("deepseek_v3", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>code<｜tool▁sep｜>clock"),
    ("deepseek_v31", "<｜tool▁calls▁begin｜>nothing<｜tool▁calls▁end｜>"),
    ("glm45", "<tool_call>rm\n</tool_call>"),
    ("glm47", "<tool_call>rm<arg_key>x</arg_key><arg_value>/</arg_value></tool_call>"),
    ("kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>functions.rm:0<|tool_call_argument_begin|>{}"),
    ("kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>clock<|tool_call_argument_begin|>{}<|tool_call_end|>"),
    ("kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>0<|tool_call_argument_begin|>{}<|tool_call_end|>"),
    ("minimax_m2", '<minimax:tool_call>\n<invoke name="rm">\n</invoke>\n</minimax:tool_call>'),
    ("minimax", "<tool_calls>\nnone\n</tool_calls>"),
    ("granite", '<|tool_call|>{"name": "clock", "arguments": {}}'),
    ("gpt_oss", "no header at all"),
    ("gpt_oss", "<|channel|>commentary to=python<|message|>1+1"),
]
"""Format and an answer that has no call: all of it is content."""

BROKEN: Final = [
    ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": Köln}}</tool_call>'),
    ("hermes", 'a <tool_call>{"name": "weather", "arguments": {"city": "K'),
    ("hermes", '<tool_call>{"name": "weather", "arguments": {"days": 01}}'),
    ("llama3_json", '{"name": "weather", "parameters": {"city": "K", }}'),
    ("pythonic", "[weather(city='K', days=len(x))]"),
    ("mistral", '[TOOL_CALLS]weather[ARGS]{"city": ["K"}'),
    ("qwen3_coder", "<tool_call>\n<function=weather>\n<parameter=city>\nK\n</parameter>\nand so on"),
    (
        "deepseek_v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{'city': 1}\n```",
    ),
    ("glm45", "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>K</arg_value>\nand so on"),
    ("glm47", "<tool_call>weather<arg_key>city</arg_key><arg_value>K"),
    (
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{'city': 1}",
    ),
    ("minimax_m2", '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">K</parameter>\n<invoke'),
    ("minimax", '<tool_calls>\n{"name": "weather", "arguments": {"city": K}}\n</tool_calls>'),
    ("granite", '<|tool_call|>[{"name": "weather", "arguments": {"city": "K"'),
    ("gpt_oss", '<|channel|>commentary to=functions.weather<|message|>{"city": "K'),
]
"""Format and an answer with a call that goes wrong after its name was told."""


def parsing(written: str, **fields: Any) -> ParserConfig:
    """What a request with all FUNCTIONS requests, of a model with that format of calls."""
    return ParserConfig(tools=written, offered=FUNCTIONS, **fields)


def parts(asked: ParserConfig, pieces: list[str]) -> list[Part]:
    """What a parser says of an answer that comes so."""
    ids = iter(range(1000))
    parser = AnswerParser(asked, lambda: f"call_{next(ids)}")
    return [part for piece in pieces for part in parser.push(piece)] + parser.finish()


def joined(asked: ParserConfig, pieces: list[str]) -> JoinedAnswer:
    """The answer as a whole."""
    return join(parts(asked, pieces))
